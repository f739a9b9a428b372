"""Building: what lies in an engine, what is refused, and that the same input gives the same bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from precast import files
from precast._native import kernels
from precast.builder import BuildOptions, build
from precast.builder.engine_file import CHECKSUM_BLOCK, HUGE_PAGE, EngineFile, EngineWriter
from precast.builder.interpreter import Interpreter
from precast.builder.models.decoder import decoder
from precast.builder.plan import Plan
from precast.builder.weights import Checkpoint
from precast.errors import BuildError, CheckpointError, PrecastError
from precast.plugins.kv_append.reference import KV_DTYPES
from precast.plugins.linear.layout import INT8_TAG, LAYOUTS, PANEL, unpack
from precast.quantize import ConvertOptions, convert
from tests.steps import Steps
from tests.tiny import VOCAB, distance, random_tokens, tiny_llama


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Odd sizes on purpose: 44 columns of the MLP are no multiple of a panel, 320 tokens are."""
    folder = tmp_path_factory.mktemp("build")
    tiny_llama(folder / "hf", intermediate_size=44, mlp_bias=True)
    quant = "int8" if request.param == "int8" else "none"
    dtype = "auto" if request.param == "int8" else request.param
    convert(folder / "hf", folder / "ckpt", ConvertOptions(quant, dtype=dtype))
    return Checkpoint(folder / "ckpt")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tied")
    tiny_llama(folder / "hf", tie_word_embeddings=True)
    convert(folder / "hf", folder / "ckpt", ConvertOptions(dtype="bfloat16"))
    return folder / "ckpt"


def opened(folder: Path) -> tuple[EngineFile, Plan]:
    engine = EngineFile.open(folder / "rank0.engine")
    return engine, Plan.from_bytes(bytes(engine.bytes("plan")))


def packed(engine: EngineFile, name: str, n: int) -> np.ndarray[Any, Any]:
    """A weight section as packed panels."""
    layout = LAYOUTS[engine.sections[name].tag]
    return np.frombuffer(engine.bytes(name), layout.packed).reshape(-(-n // PANEL), -1, PANEL, layout.inner)


def test_every_weight_lies_packed_in_the_engine(checkpoint: Checkpoint, tmp_path: Path) -> None:
    build(checkpoint.folder, tmp_path / "engine")
    engine, _ = opened(tmp_path / "engine")
    for module in ("transformer.layers.1.attention.qkv", "transformer.layers.0.mlp.proj", "lm_head"):
        weight = checkpoint.tensor(module + ".weight")
        tag = engine.sections[module + ".weight"].tag
        again = unpack(tag, packed(engine, module + ".weight", len(weight)), *weight.shape)
        assert again.tobytes() == weight.tobytes()
    bias = np.frombuffer(engine.bytes("transformer.layers.0.mlp.proj.bias"), np.float32)
    assert (bias[:96] == checkpoint.vector("transformer.layers.0.mlp.proj.bias")).all()


def test_gate_and_up_alternate_in_panels(checkpoint: Checkpoint, tmp_path: Path) -> None:
    build(checkpoint.folder, tmp_path / "engine")
    engine, _ = opened(tmp_path / "engine")
    name = "transformer.layers.0.mlp.gate_up.weight"
    gate, up = (checkpoint.tensor(f"transformer.layers.0.mlp.{part}.weight") for part in ("fc", "gate"))
    panels = packed(engine, name, 2 * 48)
    for part, weight in ((0, gate), (1, up)):
        again = unpack(engine.sections[name].tag, np.ascontiguousarray(panels[part::2]), 44, 96)
        assert again.tobytes() == weight.tobytes()


def test_layouts_are_those_of_this_machine(checkpoint: Checkpoint, tmp_path: Path) -> None:
    build(checkpoint.folder, tmp_path / "engine")
    engine, plan = opened(tmp_path / "engine")
    isa = kernels.isa_level()
    dtype = checkpoint.linear_dtype("lm_head")
    expected = {
        np.dtype(np.int8): INT8_TAG[isa],
        np.dtype(np.float32): "panel16.f32",
        np.dtype(ml_dtypes.bfloat16): "panel16.bf16",
    }[dtype]
    assert plan.attributes["isa"] == isa
    assert engine.sections["lm_head.weight"].tag == expected
    for section in engine.sections.values():
        assert section.offset % (HUGE_PAGE if section.length >= HUGE_PAGE else 64) == 0


def test_every_section_is_used_and_every_weight_is_there(checkpoint: Checkpoint, tmp_path: Path) -> None:
    build(checkpoint.folder, tmp_path / "engine")
    engine, plan = opened(tmp_path / "engine")
    named = {weight for op in plan.ops for weight in op.weights}
    assert named == engine.sections.keys() - {"plan", "vocab_bytes"}


def test_a_tied_head_is_one_table(tied: Path, tmp_path: Path) -> None:
    build(tied, tmp_path / "engine")
    engine, plan = opened(tmp_path / "engine")
    embed, head = plan.ops[0], plan.ops[-1]
    assert embed.weights == head.weights == ("transformer.vocab_embedding.weight",)
    assert engine.sections[embed.weights[0]].tag == "panel16.bf16"
    assert not [name for name in engine.sections if "lm_head" in name]


def test_the_same_input_gives_the_same_bytes(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(checkpoint.folder, tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["config.json", "generation_config.json", "rank0.engine"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def ids(folder: Path) -> tuple[str, str]:
    config = json.loads((folder / "config.json").read_bytes())
    return config["numerics_id"], config["build_id"]


def test_limits_change_the_build_and_not_the_numbers(tied: Path, tmp_path: Path) -> None:
    build(tied, tmp_path / "a")
    build(tied, tmp_path / "b", BuildOptions(max_batch_size=4, max_seq_len=100))
    build(tied, tmp_path / "c", BuildOptions(kv_cache_dtype="float32"))
    (numerics_a, build_a), (numerics_b, build_b), (numerics_c, build_c) = (ids(tmp_path / n) for n in "abc")
    assert numerics_a == numerics_b != numerics_c
    assert len({build_a, build_b, build_c}) == 3


def test_dynamic_rope_makes_max_seq_len_part_of_the_numbers(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    tiny_llama(tmp_path / "hf", rope_parameters=rope, max_position_embeddings=256)
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions())
    for length in (128, 256, 512):
        build(tmp_path / "ckpt", tmp_path / str(length), BuildOptions(max_seq_len=length))
    numerics = [ids(tmp_path / str(length))[0] for length in (128, 256, 512)]
    assert numerics[0] == numerics[1] != numerics[2]  # positions are stretched beyond the trained length only
    with pytest.raises(BuildError, match="513 must lie in 2 … 512"):
        build(tmp_path / "ckpt", tmp_path / "longer", BuildOptions(max_seq_len=513))


def test_auto_decides_the_cache_dtype(checkpoint: Checkpoint, tmp_path: Path) -> None:
    build(checkpoint.folder, tmp_path / "engine")
    _, plan = opened(tmp_path / "engine")
    plain = checkpoint.config.dtype == "float32" and checkpoint.config.quantization.quant_algo is None
    assert plan.attributes["kv_cache_dtype"] == ("float32" if plain else "bfloat16")
    assert plan.attributes["max_seq_len"] == 2048


REFUSED: dict[str, tuple[BuildOptions, str]] = {
    "target": (BuildOptions(target="npu"), "npu"),
    "max_seq_len 0": (BuildOptions(max_seq_len=0), r"max_seq_len 0 must lie in 2 … 2048"),
    "no room for an answer": (BuildOptions(max_seq_len=1), r"max_seq_len 1 must lie in 2 … 2048"),
    "max_seq_len beyond the model": (BuildOptions(max_seq_len=2049), "2049 must lie in 2 … 2048"),
    "max_batch_size 0": (BuildOptions(max_batch_size=0), "max_batch_size 0"),
    "max_num_tokens below the batch": (BuildOptions(max_batch_size=40, max_num_tokens=39), "max_num_tokens 39"),
    "max_num_tokens below a page": (BuildOptions(max_batch_size=1, max_num_tokens=31), "max_num_tokens 31"),
    "optimization_level": (BuildOptions(optimization_level=4), r"optimization_level 4 must lie in 0 … 3"),
    "kv_cache_dtype": (BuildOptions(kv_cache_dtype="fp4"), "'fp4' is not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_limits_that_cannot_work_are_refused(name: str, tied: Path, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    with pytest.raises(BuildError, match=message):
        build(tied, tmp_path / "engine", options)
    assert not list(tmp_path.iterdir())


def test_limits_at_the_border_work(tied: Path, tmp_path: Path) -> None:
    build(tied, tmp_path / "a", BuildOptions(max_seq_len=2048, max_batch_size=32, max_num_tokens=32))
    build(tied, tmp_path / "b", BuildOptions(max_seq_len=2, max_batch_size=1, max_num_tokens=32))


def test_a_full_disk_is_refused_with_the_numbers(tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real._replace(free=10**6))
    with pytest.raises(PrecastError, match=r"needs 0\.\d\d GB and .* has 0\.00 GB free"):
        build(tied, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


def test_too_little_memory_is_refused_with_the_numbers(tied: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"packing the weights needs 0\.1\d GB of memory and 0\.00 GB"):
        build(tied, tmp_path / "engine", available_memory=1 << 20)
    huge = BuildOptions(max_batch_size=4096, max_num_tokens=65536)
    with pytest.raises(BuildError, match=r"max_seq_len 2048 takes 0\.\d\d GB .* lower max_seq_len, max_num_tokens"):
        build(tied, tmp_path / "engine", huge, available_memory=130 << 20)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_each_cache_dtype_gives_the_logits_of_the_reference(dtype: str, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ckpt")
    build(tmp_path / "ckpt", tmp_path / "engine", BuildOptions(kv_cache_dtype=dtype, max_seq_len=100))
    checkpoint, tokens = Checkpoint(tmp_path / "ckpt"), random_tokens(70)
    got = Steps(tmp_path / "engine").logits(tokens)
    level = kernels.isa_level()
    errors = {
        kind: distance(got, Interpreter(decoder(checkpoint.config), checkpoint, 100).run(tokens, kind, level))
        for kind in KV_DTYPES
    }
    # An element that falls on the other side of a rounding border is a step away from the reference's, and a level may
    # round weights, too.
    assert errors[dtype] < (1e-4 if dtype == "float32" else 0.5 * min(errors[k] for k in errors if k != dtype))
    memory = json.loads((tmp_path / "engine" / "config.json").read_bytes())["memory"]
    scales = 4 if dtype in ("int8", "fp8") else 0
    assert memory["kv_per_sequence_bytes"] == 2 * 2 * 2 * (40 * KV_DTYPES[dtype].itemsize + scales) * 128
    assert memory["kv_per_sequence_bytes"] == 4 * sum(
        g.page_bytes for g in Steps(tmp_path / "engine").engine.limits.groups
    )


def test_estimates_are_recorded(tied: Path, tmp_path: Path) -> None:
    build(tied, tmp_path / "engine", BuildOptions(max_seq_len=100, max_batch_size=2, max_num_tokens=32))
    memory = json.loads((tmp_path / "engine" / "config.json").read_bytes())["memory"]
    # 2 layers of keys and values of 2 heads of 40 in bfloat16, 100 tokens in pages of 32
    assert memory["kv_per_sequence_bytes"] == 2 * 2 * 2 * 40 * 2 * 128
    assert memory["logits_bytes"] == 2 * VOCAB * 4
    sections = EngineFile.open(tmp_path / "engine" / "rank0.engine").sections
    assert memory["weights_bytes"] == sum(s.length for s in sections.values() if s.name != "plan")


def test_a_half_quantized_mlp_keeps_two_linears(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions("int8", exclude=("*.0.mlp.fc",)))
    build(tmp_path / "ckpt", tmp_path / "engine", BuildOptions(kv_cache_dtype="float32"))
    checkpoint, tokens = Checkpoint(tmp_path / "ckpt"), random_tokens(20)
    expected = Interpreter(decoder(checkpoint.config), checkpoint, 2048).run(tokens)
    assert distance(Steps(tmp_path / "engine").logits(tokens), expected) < 1e-3


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(CheckpointError, match="no config"):
        build(tmp_path / "x", tmp_path / "engine")


def test_a_failed_check_leaves_no_engine(tied: Path, tmp_path: Path) -> None:
    def refuse(folder: Path) -> None:
        assert EngineFile.open(folder / "rank0.engine")
        raise BuildError("no")

    with pytest.raises(BuildError, match="no"):
        build(tied, tmp_path / "engine", check=refuse)
    assert not list(tmp_path.iterdir())


def test_an_older_engine_is_replaced_whole(tied: Path, tmp_path: Path) -> None:
    build(tied, tmp_path / "engine", BuildOptions(max_seq_len=64))
    before = ids(tmp_path / "engine")
    build(tied, tmp_path / "engine", BuildOptions(max_seq_len=128))
    assert ids(tmp_path / "engine") != before
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_a_folder_of_other_things_is_not_replaced(tied: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("mine")
    with pytest.raises(PrecastError, match="holds other files"):
        build(tied, tmp_path / "photos")
    assert (tmp_path / "photos" / "a.jpg").read_text() == "mine"


def test_progress_counts_to_the_end(tied: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    build(tied, tmp_path / "engine", progress=lambda *what: seen.append(what))
    packing = [(done, total) for stage, done, total in seen if stage == "pack"]
    assert packing == [(i, packing[0][1]) for i in range(packing[0][1] + 1)]


def test_a_section_is_written_in_whole_blocks_in_whatever_parts_it_comes(tmp_path: Path, monkeypatch: Any) -> None:
    calls: list[int] = []
    write = files.write
    monkeypatch.setattr(files, "write", lambda file, data: (calls.append(len(data)), write(file, data)))
    whole = np.arange(2 * CHECKSUM_BLOCK + 5000, dtype="u1")
    writer = EngineWriter(tmp_path / "rank0.engine", [("w", "vector.f32", len(whole))])
    writer.add("w", iter(np.array_split(whole, 37)))
    assert calls == [CHECKSUM_BLOCK, CHECKSUM_BLOCK, 5000]
    writer.close()
    engine = EngineFile.open(tmp_path / "rank0.engine")
    assert bytes(engine.bytes("w")) == whole.tobytes()
    assert not list(engine.damage())
