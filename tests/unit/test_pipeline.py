"""resolve → convert → build → finish: what MODEL may be, what is refused, and what the cache keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from precast import own_code, pipeline
from precast.builder import BuildOptions, build_cache
from precast.builder.engine_file import EngineFile
from precast.builder.weights import Checkpoint
from precast.errors import EngineError, PrecastError, SourceError
from precast.quantize import ConvertOptions, convert
from precast.runtime.sampling import SamplingParams
from precast.safetensors_file import SafetensorsWriter
from tests.faults import die_everywhere
from tests.tiny import logits_of, random_tokens, tiny_llama

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRECAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline") / "hf"
    tiny_llama(folder, **SMALL)
    return folder


@pytest.fixture(scope="module")
def checkpoint(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline") / "ckpt"
    convert(source, folder, ConvertOptions())
    return folder


def test_a_path_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(SourceError, match="does not exist; give a model folder, a GGUF file"):
        pipeline.resolve("./nothing/here")


def test_the_demo_is_looked_up_in_the_cache(cache: Path) -> None:
    from precast.quantize.demo import FOLDER, GGUF

    path = cache / FOLDER / GGUF
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    assert pipeline.resolve("demo") == path


def test_kinds_are_told_by_the_config(source: Path, checkpoint: Path, tmp_path: Path) -> None:
    pipeline.build(checkpoint, tmp_path / "engine")
    assert pipeline.kind_of(tmp_path / "engine") == "engine"
    assert pipeline.kind_of(checkpoint) == "checkpoint"
    assert pipeline.kind_of(source) == "source"
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert pipeline.kind_of(tmp_path / "model.gguf") == "source"


def test_the_second_start_builds_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pipeline.engine_for(source)
    before = (first / "rank0.engine").stat().st_mtime_ns
    stages: list[str] = []
    assert pipeline.engine_for(source, progress=lambda stage, *_: stages.append(stage)) == first
    assert stages == []
    assert (first / "rank0.engine").stat().st_mtime_ns == before


def test_int8_is_what_a_model_gets_unless_told(source: Path) -> None:
    default, told = pipeline.engine_for(source), pipeline.engine_for(source, ConvertOptions("none"))
    algo = [json.loads((e / "config.json").read_bytes())["pretrained_config"] for e in (default, told)]
    assert [a["quantization"]["quant_algo"] for a in algo] == ["W8A8_DYNAMIC", None]


def test_other_options_make_another_engine(source: Path) -> None:
    engines = {
        pipeline.engine_for(source),
        pipeline.engine_for(source, ConvertOptions("none")),
        pipeline.engine_for(source, build_options=BuildOptions(max_seq_len=64)),
    }
    assert len(engines) == 3


def test_other_code_makes_another_engine(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, sources = pipeline.engine_for(source), own_code._sources()
    names = [path.name for path in sources]
    assert {"rotation.py", "decoder.py", "layout.py", "vocab.py", "checkpoint.py"} <= set(names)
    assert any(name.startswith("_native") for name in names)
    changed = tmp_path / "rotation.py"
    changed.write_text("# " + sources[names.index("rotation.py")].read_text())
    sources[names.index("rotation.py")] = changed
    monkeypatch.setattr(own_code, "_sources", lambda: sources)
    assert pipeline.engine_for(source) != first


def test_a_copy_of_a_model_is_the_same_model(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in source.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert pipeline.engine_for(copy) == pipeline.engine_for(source)


def test_an_engine_is_itself_and_its_options_are_fixed(checkpoint: Path, tmp_path: Path) -> None:
    pipeline.build(checkpoint, tmp_path / "engine")
    assert pipeline.engine_for(tmp_path / "engine") == tmp_path / "engine"
    with pytest.raises(PrecastError, match="is an engine"):
        pipeline.engine_for(tmp_path / "engine", build_options=BuildOptions())


def test_a_checkpoint_is_built_through_the_cache_and_keeps_its_quantization(checkpoint: Path, cache: Path) -> None:
    assert pipeline.engine_for(checkpoint).parent == cache / "engines"
    with pytest.raises(PrecastError, match="is a checkpoint: its quantization is fixed"):
        pipeline.engine_for(checkpoint, ConvertOptions("int8"))


def test_llm_takes_any_model(source: Path, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", **SMALL)
    prompt = random_tokens(9)
    with pipeline.LLM(tmp_path / "hf", convert_options=ConvertOptions("none"), num_threads=1) as llm:
        output = llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0, ignore_eos=True))[0]
    assert output.token_ids == [int(np.argmax(logits_of(model, prompt)[-1]))]


@pytest.mark.parametrize("quant", ["none", "int8"])
def test_finish_refuses_an_engine_that_computes_something_else(source: Path, quant: str, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt", ConvertOptions(quant))
    pipeline.build(tmp_path / "ckpt", tmp_path / "engine")  # passes
    # The same shapes with the rows of one projection rolled by a panel, as a wrong layout would have them.
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_bytes((tmp_path / "ckpt" / "config.json").read_bytes())
    original = Checkpoint(tmp_path / "ckpt")
    shapes = {name: (t.dtype, t.shape) for name, t in original._file.tensors.items()}
    writer = SafetensorsWriter(other / "rank0.safetensors", shapes)
    for name in shapes:
        tensor = original.tensor(name)
        writer.add(name, np.roll(tensor, 16, axis=0) if name.endswith("lm_head.weight") else tensor)
    writer.close()
    with pytest.raises(EngineError, match="computes other logits than the reference"):
        pipeline.finish(tmp_path / "engine", other)


def test_finish_refuses_logits_that_are_not_finite(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt", ConvertOptions())
    original = Checkpoint(tmp_path / "ckpt")
    shapes = {name: (t.dtype, t.shape) for name, t in original._file.tensors.items()}
    tensors = {name: np.array(original.tensor(name)) for name in shapes}
    tensors["transformer.ln_f.weight"][0] = np.inf
    (tmp_path / "ckpt" / "rank0.safetensors").unlink()
    writer = SafetensorsWriter(tmp_path / "ckpt" / "rank0.safetensors", shapes)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()
    with pytest.raises(EngineError):
        pipeline.build(tmp_path / "ckpt", tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_a_model_that_cannot_be_converted_leaves_the_cache_clean(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "rwkv"}')
    with pytest.raises(SourceError):
        pipeline.engine_for(tmp_path / "hf")
    assert not list(cache.glob("engines/*"))


def test_a_kill_anywhere_from_model_to_engine_leaves_whole_engines_or_none(source: Path, cache: Path) -> None:
    def work() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        pipeline.engine_for(source)

    def check(point: int) -> None:
        for entry in build_cache.entries():
            engine = EngineFile.open(entry.path / "rank0.engine")
            assert not list(engine.damage())

    assert die_everywhere(work, check) > 20
    engine = pipeline.engine_for(source)
    build_cache.prune(1 << 40)  # sweeps what the kills left
    assert [path.name for path in (cache / "engines").iterdir()] == [engine.name]
