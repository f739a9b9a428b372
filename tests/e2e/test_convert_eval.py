"""`precast convert --eval`: a checkpoint against its source, before it appears."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precast.builder import BuildOptions, build
from precast.evaluation.compare import compare
from precast.evaluation.model import open_model
from precast.evaluation.windows import windows_of
from tests.e2e.command_line import precast, state_of

TIMES = ("convert_seconds", "convert_peak_memory_bytes", "evaluate_seconds")


def quality_of(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / "report.json").read_text())["quality"]
    return found


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "held-out.txt"
    path.write_text("\n".join(f"the quick brown fox jumps over {i**3} lazy dogs" for i in range(40)))
    return path


def test_a_checkpoint_is_measured_against_its_source(hf_folder: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "ckpt"
    shown = precast("convert", hf_folder, "--output-dir", out, "--quant", "int8", "--eval-text", text)
    assert "KL from the source: mean" in shown.done()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "held-out.txt"]
    found = quality_of(out)
    assert all(found[key] > 0 for key in TIMES)
    assert found["weights_bytes"] == (out / "rank0.safetensors").stat().st_size < found["source_weights_bytes"]

    # The same against transformers, with an engine that is built by hand.
    build(out, tmp_path / "engine", BuildOptions(kv_cache_dtype="float32"))
    a, b = open_model(hf_folder), open_model(tmp_path / "engine")
    windows = windows_of(text, b.tokenizer, 256, 16)
    for model in (a, b):
        model.reserve(windows.longest)
    expected = compare(a, b, windows)
    assert (found["text"], found["windows"], found["tokens"]) == ("held-out.txt", expected.windows, expected.tokens)
    for key in ("kl_mean", "kl_median", "kl_p99"):
        assert found[key] == pytest.approx(getattr(expected, key), rel=0.02)
    assert found["top1_agreement"] == pytest.approx(expected.top1_agreement, abs=0.01)
    assert found["perplexity_source"] == pytest.approx(expected.perplexity_a, rel=1e-4)
    assert found["perplexity"] == pytest.approx(expected.perplexity_b, rel=1e-9)
    del found["check"]  # for `build`, not for people
    assert json.loads(precast("inspect", out, "--json").done())["quality"] == found


def test_what_the_source_generates_is_the_same_again(hf_folder: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        precast("convert", hf_folder, "--output-dir", tmp_path / name, "--quant", "int8", "--eval").done()
        found.append({key: value for key, value in quality_of(tmp_path / name).items() if key not in TIMES})
    assert found[0] == found[1]
    assert (found[0]["text"], found[0]["windows"], found[0]["tokens"]) == (None, 16, 16 * 255)
    # A text of its own, at temperature 1, is worth the entropy of its distributions: less than that of equal chances.
    assert 1 < found[0]["perplexity_source"] < 320
    assert found[0]["kl_mean"] > 0


def test_what_is_not_quantized_lost_nothing(hf_folder: Path, text: Path, tmp_path: Path) -> None:
    precast("convert", hf_folder, "--output-dir", tmp_path / "ckpt", "--eval-text", text).done()
    found = quality_of(tmp_path / "ckpt")
    assert (found["kl_max"], found["top1_agreement"]) == (0, 1)
    assert found["perplexity"] == found["perplexity_source"]


def test_a_checkpoint_beyond_the_limit_does_not_appear(
    hf_folder: Path, checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    given = ("convert", hf_folder, "--quant", "int8", "--eval-text", text, "--max-kl", "1e-9")
    refused = precast(*given, "--output-dir", tmp_path / "ckpt").failed(1)
    assert "nats per token" in refused
    assert "was not written" in refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held-out.txt"]
    before = state_of(checkpoint)
    precast(*given, "--output-dir", checkpoint).failed(1)
    assert state_of(checkpoint) == before


def test_a_text_that_cannot_be_used_is_one_sentence(hf_folder: Path, tmp_path: Path) -> None:
    given = ("convert", hf_folder, "--output-dir", tmp_path / "ckpt", "--eval-text")
    assert "missing is not a file" in precast(*given, tmp_path / "missing").failed(1)
    (tmp_path / "short").write_text("x")
    assert "too few tokens" in precast(*given, tmp_path / "short").failed(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short"]
    assert "--max-kl" in precast(*given[:-1], "--max-kl", "-1").failed(2)
