"""The quality of a checkpoint goes into its engine, which must give the probabilities that were measured."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precast.builder import BuildOptions
from precast.builder.describe import describe_engine
from precast.errors import CheckpointError, EngineError, PrecastError
from precast.evaluation.conversion import convert_and_measure
from precast.pipeline import build
from precast.quantize import ConvertOptions
from tests.tiny import tiny_chat_model


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that was measured at its conversion."""
    folder = tmp_path_factory.mktemp("measured")
    tiny_chat_model(folder / "hf")
    convert_and_measure(folder / "hf", folder / "ckpt", ConvertOptions("int8"))
    return folder / "ckpt"


def built(checkpoint: Path, folder: Path, **options: Any) -> dict[str, Any]:
    build(checkpoint, folder, BuildOptions(max_batch_size=4, optimization_level=0, **options))
    return describe_engine(folder, verify=True)


def with_report(checkpoint: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy whose quality `change` has been at."""
    shutil.copytree(checkpoint, folder)
    report = json.loads((folder / "report.json").read_text())
    report["quality"] = change(report["quality"])
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def test_the_engine_keeps_what_was_measured_and_its_own_difference(measured: Path, tmp_path: Path) -> None:
    report = json.loads((measured / "report.json").read_text())["quality"]
    found = built(measured, tmp_path / "same", kv_cache_dtype="float32")
    assert found["damage"] == []
    quality = found["quality"]
    assert {key: report[key] for key in ("tokens", "kl_mean", "perplexity")}.items() <= quality.items()
    assert quality["engine_checked_tokens"] == 63
    assert quality["engine_nats_difference"] == 0  # the same kernels and K/V give the same bits
    coarser = built(measured, tmp_path / "int8", kv_cache_dtype="int8")["quality"]
    assert 0 < coarser["engine_nats_difference"] < 0.5
    short = built(measured, tmp_path / "short", kv_cache_dtype="float32", max_seq_len=10)["quality"]
    assert (short["engine_checked_tokens"], short["engine_nats_difference"]) == (9, 0)


def test_an_engine_that_gives_other_probabilities_is_refused(measured: Path, tmp_path: Path) -> None:
    def other(quality: dict[str, Any]) -> dict[str, Any]:
        check = quality["check"]
        return quality | {"check": check | {"nats": [value + 1.5 for value in check["nats"]]}}

    checkpoint = with_report(measured, tmp_path / "ckpt", other)
    with pytest.raises(EngineError, match=r"other probabilities than were measured .*1\.5 nats"):
        built(checkpoint, tmp_path / "engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt"]


def test_a_checkpoint_that_was_not_measured_gives_an_engine_without(measured: Path, tmp_path: Path) -> None:
    assert "quality" not in built(with_report(measured, tmp_path / "ckpt", lambda _: None), tmp_path / "engine")


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no object": lambda quality: 5,
    "no check": lambda quality: {key: value for key, value in quality.items() if key != "check"},
    "check without tokens": lambda quality: quality | {"check": {"nats": []}},
    "one token": lambda quality: quality | {"check": {"tokens": [5], "nats": []}},
    "token outside the vocabulary": lambda quality: quality | {"check": {"tokens": [5, 320], "nats": [1.0]}},
    "token that is no number": lambda quality: quality | {"check": {"tokens": [5, True], "nats": [1.0]}},
    "too many tokens": lambda quality: quality | {"check": {"tokens": [5] * 10_000, "nats": [1.0] * 9_999}},
    "lengths that differ": lambda quality: quality | {"check": {"tokens": [5, 6], "nats": [1.0, 2.0]}},
    "nats that are not finite": lambda quality: quality | {"check": {"tokens": [5, 6], "nats": [math.nan]}},
    "figure that is missing": lambda quality: {key: value for key, value in quality.items() if key != "kl_mean"},
    "figure that is no number": lambda quality: quality | {"kl_mean": "x" * 1_000_000},
    "figure that is not finite": lambda quality: quality | {"kl_mean": math.inf},
    "figure of a thousand digits": lambda quality: quality | {"tokens": 10**1000},
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_quality_that_convert_did_not_write_is_refused(case: str, measured: Path, tmp_path: Path) -> None:
    checkpoint = with_report(measured, tmp_path / "ckpt", DAMAGE[case])
    with pytest.raises(CheckpointError, match="quality that convert did not write"):
        built(checkpoint, tmp_path / "engine")


def test_a_damaged_quality_of_an_engine_is_named(measured: Path, tmp_path: Path) -> None:
    built(measured, tmp_path / "engine")
    path = tmp_path / "engine" / "rank0.engine"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"windows":', b'["windows":'))
    assert path.read_bytes() != data
    with pytest.raises(PrecastError, match="its quality cannot be read"):
        describe_engine(tmp_path / "engine")
