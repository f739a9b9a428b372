"""Step costs: how they are fitted, stored and read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from precast import pipeline
from precast._native import runtime as native
from precast.builder import BuildOptions
from precast.builder.engine_file import EngineFile
from precast.errors import EngineError
from precast.planning.step_costs import calibrate, stored_costs
from precast.quantize import ConvertOptions, convert
from precast.runtime import calibration
from precast.runtime.calibration import Measured, Step, StepCosts, nonnegative_least_squares
from tests.tiny import tiny_llama

COSTS = StepCosts("some CPU", 2, [(1, 0.01), (8, 0.02)], [(1, 0.001), (8, 0.004)], 1e-4, 1e-9, 1e-10, 0.02)


@pytest.mark.parametrize("seed", range(20))
def test_nonnegative_least_squares_is_optimal(seed: int) -> None:
    random = np.random.default_rng(seed)
    a = np.abs(random.standard_normal((12, 7)))
    a[:, 6] = a[:, 5]  # equal columns have no single answer
    b = random.standard_normal(12)
    x = nonnegative_least_squares(a, b)
    gradient = a.T @ (b - a @ x)
    assert x.min() >= 0
    assert gradient.max() < 1e-6  # nothing is gained by more of anything,
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-6  # nor by less of what there is


def test_a_fit_finds_the_costs_that_made_the_times() -> None:
    backend = native.CountingBackend(max_batch_size=16, max_num_tokens=128, max_seq_len=512)
    timer = native.StepTimer(backend, 64)
    true = native.StepCost(
        rows=[(1, 1.0), (4, 1.5), (16, 3.0), (64, 11.0)],
        logit_rows=[(1, 0.1), (16, 0.9)],
        sequence=0.02,
        decode_kv_byte=4e-4,
        prefill_kv_byte=1e-4,
    )
    steps = [Step([(1, at)] * n, logits) for n in (1, 4, 16) for at in (3, 31, 120) for logits in (False, True)]
    steps += [Step([(n, at)], False) for n in (4, 16, 64) for at in (0, 200)]
    steps += [Step([(1, 90)] * 3 + [(20, 7)], True, fitted=False)]
    shapes = [timer.shape(step.sequences, step.with_logits) for step in steps]
    measured = Measured(steps, shapes, [true.seconds(shape) for shape in shapes])
    costs = calibration.fit(measured, "some CPU", 1)
    assert max(measured.errors(costs.native())) < 1e-3
    assert costs.error < 1e-3
    assert costs.decode_kv_byte == pytest.approx(4e-4, rel=0.01)
    assert costs.prefill_kv_byte == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("max_seq_len", [2, 33, 300, 1200, 4095])
@pytest.mark.parametrize(("max_batch_size", "max_num_tokens"), [(1, 32), (4, 64), (32, 512)])
def test_all_that_is_measured_fits(max_seq_len: int, max_batch_size: int, max_num_tokens: int) -> None:
    limits = native.CountingBackend(
        max_batch_size=max_batch_size, max_num_tokens=max_num_tokens, max_seq_len=max_seq_len
    ).limits
    context, pages = calibration._room(limits)
    steps = [step for series in calibration._series(limits, context, pages) for step in series]
    assert max(len(step.sequences) for step in steps) == max_batch_size
    assert max(calibration._pages(limits, step.sequences) for step in steps) <= pages


def test_a_step_that_does_not_fit_is_refused() -> None:
    timer = native.StepTimer(native.CountingBackend(), 4)
    for sequences in ([(1, 128)], [(1, 40)] * 3, [(0, 0)], [(1, -1)]):
        with pytest.raises(ValueError, match="needs more pages"):
            timer.seconds(sequences, True)
    with pytest.raises(ValueError, match=r"rows|tokens"):
        timer.seconds([(65, 0)], True)


def test_costs_are_stored_and_read() -> None:
    again = StepCosts.from_bytes(COSTS.to_bytes(), "engine")
    assert again.to_bytes() == COSTS.to_bytes()
    shape = native.StepTimer(native.CountingBackend(), 8).shape([(1, 3)] * 2, True)
    assert again.native().seconds(shape) == COSTS.native().seconds(shape)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [[1, -1.0]]},
        {"rows": [[2, 1.0], [1, 1.0]]},
        {"rows": []},
        {"rows": [[1.5, 1.0]]},
        {"rows": [[1]]},
        {"rows": None},
        {"sequence": "fast"},
        {"sequence": float("nan")},
        {"decode_kv_byte": -1.0},
        {"threads": 1.5},
        {"cpu": 7},
        {"error": float("inf")},
        {"error": None},
        {"more": 1},
    ],
)
def test_damaged_costs_are_one_sentence(change: dict[str, object]) -> None:
    damaged = json.dumps(json.loads(COSTS.to_bytes()) | change).encode()
    with pytest.raises(EngineError, match="engine has step costs that cannot be read; build the engine again"):
        StepCosts.from_bytes(damaged, "engine")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b"1" * 5000, b"[" * 100000])
def test_what_are_no_costs_is_one_sentence(data: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        StepCosts.from_bytes(data, "engine")


def test_a_built_engine_knows_its_step_costs(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "hf", hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=16)
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions())
    engine = tmp_path / "engine"
    pipeline.build(tmp_path / "ckpt", engine, BuildOptions(max_batch_size=4, max_num_tokens=64))
    costs = stored_costs(engine)
    assert costs is not None
    assert costs.threads == native.available_cpus()
    assert costs.rows[0][0] == 1
    assert list(EngineFile.open(engine / "rank0.engine").damage()) == []
    used = calibrate(engine)
    assert (used.costs, used.measured_now, used.warnings) == (costs, False, [])
    now = calibrate(engine, recalibrate=True)
    assert now.measured_now
    assert now.stored_error is not None
    assert "number of threads" in calibrate(engine, num_threads=costs.threads + 1).warnings[0]


def test_an_engine_without_step_costs_says_what_to_do(tmp_path: Path) -> None:
    from precast.builder import build

    tiny_llama(tmp_path / "hf", hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=16)
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions())
    build(tmp_path / "ckpt", tmp_path / "engine", BuildOptions(max_batch_size=4, max_num_tokens=64))
    assert stored_costs(tmp_path / "engine") is None
    with pytest.raises(EngineError, match="has no step costs; add --recalibrate"):
        calibrate(tmp_path / "engine")
    assert calibrate(tmp_path / "engine", recalibrate=True).stored_error is None
