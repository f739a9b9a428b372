"""convert: options, bounded memory, the report, and the checkpoint as others read it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.torch import load_file

from precast.builder.weights import Checkpoint
from precast.checkpoint import ModelConfig, tensor_shapes
from precast.errors import PrecastError, SourceError
from precast.quantize import ConvertOptions, convert, rows, weights
from precast.safetensors_file import SafetensorsWriter
from tests.tiny import tiny_llama

MEBI = 1 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "hf"
    tiny_llama(folder, attention_bias=True, mlp_bias=True)
    return folder


def test_none_keeps_every_weight(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt")
    original = load_file(source / "model.safetensors")
    written = load_file(tmp_path / "ckpt/rank0.safetensors")
    prefix = "model.layers.1.self_attn."
    qkv = np.concatenate([original[f"{prefix}{part}_proj.weight"] for part in "qkv"])
    assert (written["transformer.layers.1.attention.qkv.weight"].numpy() == qkv).all()
    pairs = {"attention.dense": "self_attn.o_proj", "mlp.fc": "mlp.gate_proj", "mlp.gate": "mlp.up_proj"}
    for ours, theirs in pairs.items():
        for suffix in ("weight", "bias"):
            expected = original[f"model.layers.0.{theirs}.{suffix}"]
            assert (written[f"transformer.layers.0.{ours}.{suffix}"] == expected).all()
    assert sum(w.numel() for w in written.values()) == sum(w.numel() for w in original.values())


@pytest.mark.parametrize("rotate", [True, False])
def test_blocks_make_no_difference(source: Path, tmp_path: Path, rotate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(source, tmp_path / "a", ConvertOptions("int8", rotate=rotate))
    for module in (rows, weights):
        monkeypatch.setattr(module, "BLOCK_ELEMENTS", 1)
    convert(source, tmp_path / "b", ConvertOptions("int8", rotate=rotate))
    a, b = Checkpoint(tmp_path / "a"), Checkpoint(tmp_path / "b")
    for name in tensor_shapes(a.config):
        x, y = a.tensor(name), b.tensor(name)
        if x.dtype == np.int8:  # sums of a rotation may round differently in blocks of other sizes
            assert np.abs(x.astype(int) - y).max() <= (1 if rotate else 0)
        else:
            assert np.allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=1e-5, atol=1e-6)


def test_the_library_reads_the_checkpoint(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt", ConvertOptions("int8"))
    checkpoint = Checkpoint(tmp_path / "ckpt")
    with safetensors.safe_open(tmp_path / "ckpt/rank0.safetensors", "np") as file:
        assert set(file.keys()) == set(tensor_shapes(checkpoint.config))
        for name in file.keys():  # noqa: SIM118 - not a dict
            assert (file.get_tensor(name) == checkpoint.tensor(name)).all()


def test_report_tells_settings_and_the_worst_modules(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt", ConvertOptions("int8", exclude=("*.layers.0.mlp.proj",)))
    report = json.loads((tmp_path / "ckpt/report.json").read_text())
    config = json.loads((tmp_path / "ckpt/config.json").read_text())
    assert report["rotation"] == config["rotation"] == {"kind": "kronecker_hadamard", "seed": 0}
    assert report["activation_group_size"] == config["quantization"]["activation_group_size"] == 32
    ratios = report["weight_sqnr_db"]
    assert len(ratios) == 2 * 5 - 1 + 1
    assert "transformer.layers.0.mlp.proj" not in ratios
    assert all(35 < value < 55 for value in ratios.values())
    assert report["worst"] == sorted(ratios, key=lambda module: ratios[module])[:5]


def test_report_without_quantization(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt")
    report = json.loads((tmp_path / "ckpt/report.json").read_text())
    assert (report["quant_algo"], report["weight_sqnr_db"], report["worst"]) == (None, {}, [])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"quant": "int3"}, "int3"),
        ({"dtype": "float16"}, "float16"),
        ({"quant": "int8", "activation_group_size": 33}, "33"),
        ({"activation_group_size": 32}, "--quant int8"),
        ({"exclude": ("lm_head",)}, "--quant int8"),
        ({"quant": "int8", "exclude": ("lm_haed",)}, "lm_haed"),
        ({"quant": "int8", "exclude": ("lm_head", "*.input_layernorm")}, "input_layernorm"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], word: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=word):
        convert(source, tmp_path / "ckpt", ConvertOptions(**options))
    assert not list(tmp_path.iterdir())


def test_no_room_is_found_before_work(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precast import files

    monkeypatch.setattr(files.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1000}))
    with pytest.raises(PrecastError, match="free"):
        convert(source, tmp_path / "ckpt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("quant", ["none", "int8"])
def test_memory_does_not_grow_with_the_tensors(quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_llama(tmp_path / "hf", vocab_size=200_000, hidden_size=128, num_hidden_layers=1, tie_word_embeddings=True)
    for module in (rows, weights):
        monkeypatch.setattr(module, "BLOCK_ELEMENTS", 1 << 18)
    convert(tmp_path / "hf", tmp_path / "warm", ConvertOptions(quant))  # imports and caches
    tracemalloc.start()
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions(quant))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    embedding = 200_000 * 128 * 4
    assert embedding > 90 * MEBI
    assert peak < 12 * MEBI


def test_progress_ends(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    convert(source, tmp_path / "ckpt", progress=lambda *call: seen.append(call))
    assert [done for _, done, _ in seen] == list(range(len(seen)))
    assert seen[-1][1] == seen[-1][2]
    assert {stage for stage, _, _ in seen} == {"convert"}


def test_a_writer_takes_only_what_was_announced(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"a": ("F32", (3, 4)), "b": ("F32", (2,))}
    for number, (name, blocks, word) in enumerate(
        [
            ("b", [array], "announced"),
            ("a", [array.astype(np.int8)], "int8"),
            ("a", [array.T], "announced"),
            ("a", [array[:2]], "2 rows"),
            ("a", [array, array[:1]], "4 rows"),
        ]
    ):
        writer = SafetensorsWriter(tmp_path / str(number), shapes)
        with pytest.raises(ValueError, match=word):
            writer.add_blocks(name, blocks)
        writer.abort()
    writer = SafetensorsWriter(tmp_path / "x", shapes)
    writer.add_blocks("a", iter([array[:1], array[1:]]))
    with pytest.raises(ValueError, match="b was announced"):
        writer.close()
    writer.add("b", array[0, :2])
    writer.close()
    assert (load_file(tmp_path / "x")["a"].numpy() == array).all()


def test_the_config_reads_back(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt", ConvertOptions("int8", exclude=("lm_head",)))
    config = Checkpoint(tmp_path / "ckpt").config
    again = ModelConfig.from_json(json.loads(json.dumps(config.to_json())), "x")
    assert again == config
    assert config.quantization.exclude_modules == ("lm_head",)
