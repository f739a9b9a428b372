"""Tactics are timed once a machine and within a budget, recorded, and never change a bit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precast._native import kernels
from precast.builder import BuildOptions, build, build_cache
from precast.builder.engine_file import EngineFile
from precast.builder.machine_limits import Limits
from precast.builder.plan import Attribute, Plan
from precast.builder.targets.cpu import tactics
from precast.builder.targets.cpu.shapes import AttentionShape, LinearShape, Shape
from precast.builder.targets.cpu.tactics import EFFORTS, Effort, Tactic, Tactics
from precast.builder.targets.cpu.trial import Trial, open_trial
from precast.cli.tactics_table import tactics_table
from precast.errors import BuildError
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
SMALL = LinearShape("panel16.f32", 0, 96, 96, "add", False)
ATTENTION = AttentionShape("bfloat16", 4, 2, 40, 64, 0, False, False, "bf16")
LIMITS = Limits(1e10, 1e11, 1e11, 1e11)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRECAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's limits are not measured."""
    monkeypatch.setattr(Limits, "or_higher", lambda *_: LIMITS)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All levels take little time."""
    for level, effort in EFFORTS.items():
        monkeypatch.setitem(EFFORTS, level, replace(effort, seconds=0.01))


@pytest.fixture
def scripted(one_limit: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Gives the times of all candidates instead of taking them → numbers of candidates that were timed."""
    asked: list[int] = []

    def script(*runs: list[float]) -> list[int]:
        left = list(runs)

        def time_candidates(trial: Trial, candidates: int, seconds: float) -> list[dict[int, float]]:
            asked.append(candidates)
            scores = left.pop(0) if len(left) > 1 else left[0]
            return [dict.fromkeys(trial.rows, scores[i]) for i in range(candidates)]

        monkeypatch.setattr(tactics, "time_candidates", time_candidates)
        return asked

    return script


def choose(*shapes: Shape, cpu: str = "cpu", threads: int = 1, level: int = 2) -> Tactics:
    return tactics.choose(shapes, ATTRIBUTES, cpu, threads, level, silent)


@pytest.mark.parametrize(
    "shape",
    [
        LinearShape("panel16.f32", 0, 300, 128, "none", False),
        LinearShape("panel16.f32", 0, 33, 7, "add", True),
        LinearShape("panel16.bf16", 0, 2048, 96, "gated silu", False),
        LinearShape("panel16.bf16", 0, 2048, 97, "act gelu_tanh", False),
        LinearShape(INT8, 32, 4096, 90, "add", False),
        LinearShape(INT8, 0, 4096, 90, "none", True),
        ATTENTION,
        AttentionShape("int8", 6, 6, 64, 33, 0, True, False, "bf16"),
        AttentionShape("fp8", 4, 1, 128, 64, 20, False, True, "bf16"),
        AttentionShape("float32", 2, 1, 8, 2, 0, False, False, "f32"),
    ],
    ids=lambda shape: shape.key(),
)
def test_every_candidate_of_a_shape_is_timed(shape: Shape) -> None:
    candidates = EFFORTS[2].candidates(shape)
    with open_trial(shape, candidates, ATTRIBUTES, 2) as trial:
        assert trial.rows == shape.rows(ATTRIBUTES)
        times = tactics.time_candidates(trial, len(candidates), 0)
    assert len(times) == len(candidates)
    assert all(list(of_rows) == trial.rows and min(of_rows.values()) > 0 for of_rows in times)


def test_larger_weights_are_tried_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.builder.targets.cpu.trial.WEIGHT_BYTES", 1 << 16)
    with open_trial(SHAPE, [{}], ATTRIBUTES, 1) as trial:
        assert trial.scale == 4


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("precast.files.write", full)
    with pytest.raises(BuildError, match=r"needs \d+ MiB in .*precast-trial-.*: No space left on device; set TMPDIR"):
        open_trial(SHAPE, [{}], ATTRIBUTES, 1)


def test_the_usual_candidate_stays_unless_another_is_clearly_faster() -> None:
    assert tactics.best([{1: 1.0, 16: 1.0}, {1: 0.95, 16: 0.95}]) == 0
    assert tactics.best([{1: 1.0, 16: 1.0}, {1: 0.5, 16: 1.1}]) == 1
    assert tactics.best([{1: 1.0}, {1: 0.8}, {1: 0.7}]) == 2


def test_timings_are_kept_for_the_machine(scripted: Callable[..., list[int]]) -> None:
    asked = scripted([1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0])
    for cpu, threads, level in (("one", 1, 2), ("one", 1, 2), ("one", 2, 2), ("other", 1, 2), ("one", 1, 3)):
        found = choose(SHAPE, SHAPE, cpu=cpu, threads=threads, level=level)
        assert found.chosen == {
            SHAPE: Tactic({"block_bytes": EFFORTS[level].block_bytes[2]}, {1: 0.5, 16: 0.5, 32: 0.5})
        }
        assert found.ops == {SHAPE: 2}
        assert found.limits == LIMITS
    assert asked == [5] * 6 + [7] * 2  # each machine and level once, and once more to confirm


def test_a_winner_has_to_win_twice(scripted: Callable[..., list[int]]) -> None:
    scripted([1.0, 0.5, 1.0, 1.0, 1.0], [0.9, 1.0, 0.1, 1.0, 1.0])
    assert choose(SHAPE).chosen == {
        SHAPE: Tactic({"block_bytes": EFFORTS[2].block_bytes[0]}, {1: 0.9, 16: 0.9, 32: 0.9})
    }


def test_damaged_timings_are_taken_again(scripted: Callable[..., list[int]]) -> None:
    scripted([1.0] * 7)
    good = choose(SHAPE)
    (key,) = (key for key in build_cache.load("timings.json") if SHAPE.key() in key)
    seconds = {"1": 1.0, "16": 1.0, "32": 1.0}
    for damage in (
        3,
        "x",
        None,
        {},
        {"choice": {"block_bytes": 77}, "seconds": seconds},
        {"choice": {"block_bytes": 128 << 10}, "seconds": seconds | {"1": -1}},
        {"choice": {"block_bytes": 128 << 10}, "seconds": {"1": 1.0}},
        {"choice": {"block_bytes": 128 << 10}, "seconds": [1.0]},
    ):
        build_cache.store("timings.json", dict.fromkeys(build_cache.load("timings.json"), damage))
        assert choose(SHAPE) == good
        assert build_cache.load("timings.json")[key]["seconds"] == seconds


def test_what_has_nothing_to_choose_is_timed_too(one_limit: None) -> None:
    for shape, tactic in choose(SMALL, ATTENTION).chosen.items():
        assert tactic.choice == {}
        assert list(tactic.seconds) == shape.rows(ATTRIBUTES)
        assert min(tactic.seconds.values()) > 0


def test_shares_are_of_the_limits() -> None:
    found = Tactics(1, LIMITS, {SHAPE: Tactic({}, {1: 1e-4, 1000: 1e-2})}, Counter([SHAPE]))
    row = found.to_json()["shapes"][SHAPE.key()]
    # A row reads 512 · 128 floats at 10 GB/s; a thousand of them multiply at 100 GOPS.
    assert row["share_of_limit"] == {
        1: round(512 * 128 * 4 / 1e10 / 1e-4, 4),
        1000: round(2e3 * 512 * 128 / 1e11 / 1e-2, 4),
    }


def test_limits_are_measured_again_when_something_is_faster(
    scripted: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Limits] = []

    def or_higher(limits: Limits, threads: int) -> Limits:
        measured.append(limits)
        return LIMITS if limits == Limits() else replace(LIMITS, f32_ops=1e30, read_bytes=1e30)

    monkeypatch.setattr(Limits, "or_higher", or_higher)
    scripted([1.0] * 5)
    assert choose(SHAPE).limits == choose(SHAPE).limits == LIMITS
    assert measured == [Limits()]
    scripted([1e-9] * 5)
    assert choose(replace(SHAPE, n=1024)).limits.f32_ops == choose(SHAPE).limits.f32_ops == 1e30
    assert measured == [Limits(), LIMITS]


@pytest.mark.parametrize("tick", [0.01, 1.0, 40.0])
def test_the_budget_of_a_level_holds(tick: float, one_limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of any trial takes `tick` seconds of this clock."""
    clock = [0.0]

    class Slow:
        rows = (1, 16, 64)

        def __init__(self, shape: Shape, candidates: list[Any], *_: Any) -> None:
            self.candidates = len(candidates)

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def seconds(self, rows: int) -> list[float]:
            clock[0] += tick
            return [1.0] * (self.candidates - 1) + [0.5]

    monkeypatch.setattr(tactics, "_now", lambda: clock[0])
    monkeypatch.setattr(tactics, "open_trial", Slow)
    shapes = [replace(SHAPE, n=4096 + 16 * i) for i in range(300)]
    for level, effort in EFFORTS.items():
        clock[0] = 0.0
        found = choose(*shapes, level=level)
        last = 2 * tactics.LEAST_ROUNDS * len(Slow.rows) * tick  # what is begun is finished
        assert clock[0] <= effort.budget + last
        assert set(found.chosen) == set(shapes)
        for tactic in found.chosen.values():
            assert tactic.seconds or tactic.choice == {"block_bytes": effort.block_bytes[0]}
        timed = [shape for shape, tactic in found.chosen.items() if tactic.seconds]
        assert timed == sorted(timed, key=lambda shape: shape.n)[-len(timed) :] or tick < 1  # the largest go first
        assert timed


def test_the_table_shows_every_shape(one_limit: None, quick: None) -> None:
    tactics = json.loads(json.dumps(choose(SHAPE, SMALL, SMALL, ATTENTION).to_json()))
    head, names, *rows = tactics_table(tactics)
    assert "10.0 GB/s read, 100.0 GOPS int8" in head
    assert names.split() == ["shape", "ops", "choice", *["1", "row", "4", "rows", "16", "rows", "32", "rows"]]
    assert len(rows) == 3
    assert all(" us " in row and "%" in row for row in rows)
    assert sum(" 2  -" in row for row in rows) == 1
    tactics["shapes"][SMALL.key()]["seconds"] = {}
    assert tactics_table(tactics)[3].endswith(" -")


@pytest.mark.parametrize(
    "damage",
    [
        3,
        {},
        {"panel16.f32 1x1 none": {"block_bytes": 5}},
        {"threads": 1, "limits": [], "shapes": {}},
        {"threads": 1, "limits": asdict(LIMITS), "shapes": {"a": {"ops": 1, "choice": 3, "seconds": {"x": 1}}}},
        {"threads": 1, "limits": asdict(LIMITS), "shapes": {"a": {"ops": 1, "choice": {}, "seconds": {"1": "x"}}}},
        {"threads": 1, "limits": asdict(LIMITS), "shapes": [{}]},
        {"threads": 1, "limits": asdict(LIMITS), "shapes": {}},
    ],
)
def test_there_is_no_table_of_something_else(damage: Any) -> None:
    assert tactics_table(damage) == []


def test_what_was_not_timed_is_timed_by_the_next_build(one_limit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    effort = EFFORTS[2]
    monkeypatch.setitem(EFFORTS, 2, replace(effort, budget=0.0))
    assert choose(SHAPE).chosen[SHAPE].seconds == {}
    monkeypatch.setitem(EFFORTS, 2, replace(effort, seconds=0.01))
    assert list(choose(SHAPE).chosen[SHAPE].seconds) == [1, 16, 32]


@pytest.fixture(scope="module", params=["none", "int8"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tactics")
    tiny_llama(folder / "hf", intermediate_size=2048)
    convert(folder / "hf", folder / "ckpt", ConvertOptions(request.param, dtype="bfloat16"))
    return folder / "ckpt"


def built(checkpoint: Path, engine: Path, **options: Any) -> tuple[dict[str, Any], Plan]:
    build(checkpoint, engine, BuildOptions(max_num_tokens=64, **options))
    config = json.loads((engine / "config.json").read_bytes())
    return config, Plan.from_bytes(bytes(EngineFile.open(engine / "rank0.engine").bytes("plan")))


def test_tactics_are_recorded_and_never_change_a_bit(
    checkpoint: Path, one_limit: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, ids = [], []
    for block_bytes in (1 << 10, 128 << 10, 1 << 20):
        monkeypatch.setattr(
            Effort,
            "candidates",
            lambda _, shape, b=block_bytes: [{"block_bytes": b}] if isinstance(shape, LinearShape) else [{}],
        )
        engine = tmp_path / str(block_bytes)
        config, plan = built(checkpoint, engine, optimization_level=1)
        linears = [op for op in plan.ops if op.kernel == "linear"]
        assert {op.attributes["block_bytes"] for op in linears} == {block_bytes}
        recorded = config["tactics"]["shapes"]
        assert sum(row["ops"] for row in recorded.values()) == len(linears) + 2  # two layers of attention
        for key, row in recorded.items():
            assert row["choice"] == ({} if key.startswith("attention") else {"block_bytes": block_bytes})
            assert row["seconds"].keys() == row["share_of_limit"].keys()
            assert len(row["seconds"]) == 3
        ids.append((config["numerics_id"], config["build_id"]))
        logits.append(Steps(engine, 2).logits(random_tokens(50)))
    assert len({numerics for numerics, _ in ids}) == 1
    assert len({build_id for _, build_id in ids}) == 3
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])


def test_optimization_levels_never_change_a_bit(checkpoint: Path, one_limit: None, quick: None, tmp_path: Path) -> None:
    logits, numerics = [], set()
    for level in (0, *EFFORTS):
        engine = tmp_path / str(level)
        config, plan = built(checkpoint, engine, optimization_level=level)
        assert config["build_config"]["optimization_level"] == level
        assert bool(config["tactics"]) == (level > 0)
        assert any("block_bytes" in op.attributes for op in plan.ops) == (level > 0)
        numerics.add(config["numerics_id"])
        logits.append(Steps(engine, 2).logits(random_tokens(50)))
    assert len(numerics) == 1
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])


def test_a_rebuild_on_the_same_machine_gives_the_same_bytes(checkpoint: Path, quick: None, tmp_path: Path) -> None:
    for name in ("one", "two"):
        built(checkpoint, tmp_path / name)
    for name in ("config.json", "rank0.engine"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
