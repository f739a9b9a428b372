"""Tactics are timed once a machine, recorded, and never change a bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precast._native import kernels
from precast.builder import BuildOptions, build, build_cache
from precast.builder.engine_file import EngineFile
from precast.builder.plan import Attribute, Plan
from precast.builder.targets.cpu import tactics
from precast.builder.targets.cpu.tactics import BLOCK_BYTES, LinearShape
from precast.plugins.linear.layout import INT8_TAG
from precast.progress import silent
from precast.quantize import ConvertOptions, convert
from tests.steps import Steps
from tests.tiny import random_tokens, tiny_llama

INT8 = INT8_TAG[kernels.isa_level()]
ATTRIBUTES: dict[str, Attribute] = {
    "isa": kernels.isa_level(),
    "kv_cache_dtype": "bfloat16",
    "max_batch_size": 4,
    "max_num_tokens": 32,
    "max_seq_len": 64,
}
SHAPE = LinearShape("panel16.f32", 0, 512, 128, "none", False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRECAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "shape",
    [
        LinearShape("panel16.f32", 0, 300, 128, "none", False),
        LinearShape("panel16.bf16", 0, 2048, 96, "gated", False),
        LinearShape("panel16.bf16", 0, 2048, 97, "add", False),
        LinearShape(INT8, 32, 4096, 90, "add", False),
        LinearShape(INT8, 0, 4096, 90, "none", True),
    ],
    ids=LinearShape.key,
)
def test_every_candidate_of_a_shape_is_timed(shape: LinearShape) -> None:
    scores = tactics.time_candidates(shape, ATTRIBUTES, 1)
    assert scores.keys() == set(BLOCK_BYTES)
    assert all(seconds > 0 for seconds in scores.values())


def test_the_usual_candidate_stays_unless_another_is_clearly_faster() -> None:
    usual, other = BLOCK_BYTES[:2]
    assert tactics.best({usual: 1.0, other: 0.95}) == usual
    assert tactics.best({usual: 1.0, other: 0.8}) == other
    assert tactics.best({usual: 1.0, other: 1.2}) == usual


def test_timings_are_kept_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[LinearShape] = []

    def scores(shape: LinearShape, *_: Any) -> dict[int, float]:
        timed.append(shape)
        return dict.fromkeys(BLOCK_BYTES, 1.0) | {BLOCK_BYTES[2]: 0.5}

    monkeypatch.setattr(tactics, "time_candidates", scores)
    for cpu, threads in (("one", 1), ("one", 1), ("one", 2), ("other", 1)):
        assert tactics.choose([SHAPE, SHAPE], ATTRIBUTES, cpu, threads, silent) == {SHAPE: BLOCK_BYTES[2]}
    assert timed == [SHAPE] * 6  # each machine once, and once more to confirm


def test_a_winner_has_to_win_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, other = BLOCK_BYTES[:2]
    runs = [dict.fromkeys(BLOCK_BYTES, 1.0) | {other: 0.5}, dict.fromkeys(BLOCK_BYTES, 1.0)]
    monkeypatch.setattr(tactics, "time_candidates", lambda *_: runs.pop(0))
    assert tactics.choose([SHAPE], ATTRIBUTES, "cpu", 1, silent) == {SHAPE: usual}
    assert not runs


def test_damaged_timings_are_taken_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tactics, "time_candidates", lambda *_: dict.fromkeys(BLOCK_BYTES, 1.0))
    tactics.choose([SHAPE], ATTRIBUTES, "cpu", 1, silent)
    for damage in (3, "x", None, {}):
        kept = dict.fromkeys(build_cache.load("timings.json"), damage)
        build_cache.store("timings.json", kept)
        assert tactics.choose([SHAPE], ATTRIBUTES, "cpu", 1, silent) == {SHAPE: BLOCK_BYTES[0]}


def test_small_weights_have_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tactics, "time_candidates", lambda *_: pytest.fail("timed a weight of one block"))
    small = LinearShape("panel16.f32", 0, 96, 96, "none", False)
    assert tactics.choose([small], ATTRIBUTES, "cpu", 1, silent) == {}


@pytest.mark.parametrize("quant", ["none", "int8"])
def test_tactics_are_recorded_and_never_change_a_bit(
    quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llama(tmp_path / "hf", intermediate_size=2048)
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions(quant, dtype="bfloat16"))
    logits, ids = [], []
    for block_bytes in (1 << 10, 128 << 10, 1 << 20):
        monkeypatch.setattr(tactics, "choose", lambda shapes, *_, b=block_bytes: dict.fromkeys(shapes, b))
        engine = tmp_path / str(block_bytes)
        build(tmp_path / "ckpt", engine, BuildOptions(max_num_tokens=64))
        config = json.loads((engine / "config.json").read_bytes())
        plan = Plan.from_bytes(bytes(EngineFile.open(engine / "rank0.engine").bytes("plan")))
        linears = [op for op in plan.ops if op.kernel == "linear"]
        assert {op.attributes["block_bytes"] for op in linears} == {block_bytes}
        assert {tactic["block_bytes"] for tactic in config["tactics"].values()} == {block_bytes}
        ids.append((config["numerics_id"], config["build_id"]))
        logits.append(Steps(engine, 2).logits(random_tokens(50)))
    assert len({numerics for numerics, _ in ids}) == 1
    assert len({build_id for _, build_id in ids}) == 3
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])
