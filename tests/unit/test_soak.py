"""A short soak (tests/perf/soak.py) on a tiny engine: nothing is lost, and every request ends once."""

from __future__ import annotations

from pathlib import Path

from precast.pipeline import build
from precast.quantize import convert
from tests.perf import soak
from tests.tiny import tiny_chat_model


def test_a_random_load_of_threads_and_tasks_leaves_nothing_behind(tmp_path: Path) -> None:
    tiny_chat_model(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "checkpoint")
    build(tmp_path / "checkpoint", tmp_path / "engine")
    faults, tally = soak.soak(tmp_path / "engine", 600, seed=1, threads=1, allowed_growth=None)
    assert faults == []
    assert {"length", "stop", "left"} <= tally.reasons.keys()
