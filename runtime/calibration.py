"""What steps of an engine cost on this machine: measured, fitted to a sum of parts, stored as JSON in the engine.

Needs numpy, so nothing that serves imports it.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from precast._native import runtime as native
from precast.errors import EngineError
from precast.progress import Progress, silent
from precast.runtime.memory import available_memory

SECTION, TAG = "step_cost", "step_cost.json"

BUDGET_SECONDS = 3.0
"""For all measurements, after the first of each."""

LONGEST_STEP_SECONDS = 0.25
"""A series of growing steps ends with the first that takes this long: what is larger is extrapolated."""

MOST_ROUNDS = 9

LONGEST_CONTEXT = 2048
"""Tokens; what attention costs beyond is extrapolated."""

POOL_SHARE = 0.1
"""Of the available memory, for KV pages to read in."""

Rows = list[tuple[int, int]]
"""(number of rows, first position) of each sequence of a step."""

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step: of its rows and of its logit rows (piecewise linear in their count), of each sequence, and of
    each byte of K/V that decoding sequences (one row) and the rows of longer chunks see. Sampling is included."""

    cpu: str
    threads: int
    rows: list[tuple[int, float]]
    logit_rows: list[tuple[int, float]]
    sequence: float
    decode_kv_byte: float
    prefill_kv_byte: float
    error: float
    """Median of |predicted / measured − 1| over steps that were not fitted to."""

    def native(self) -> native.StepCost:
        """For `native.simulate`."""
        return native.StepCost(
            rows=[(float(n), seconds) for n, seconds in self.rows],
            logit_rows=[(float(n), seconds) for n, seconds in self.logit_rows],
            sequence=self.sequence,
            decode_kv_byte=self.decode_kv_byte,
            prefill_kv_byte=self.prefill_kv_byte,
        )

    def to_bytes(self) -> bytes:
        """The section's JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> StepCosts:
        """Raises EngineError, which names `where`, for anything that `to_bytes` would not write."""
        try:
            costs = cls(**json.loads(data))
            points = [*costs.rows, *costs.logit_rows]
            if any(type(n) is not int for n in [costs.threads, *(n for n, _ in points)]) or type(costs.cpu) is not str:
                raise ValueError
            if not math.isfinite(costs.error) or not costs.rows:
                raise ValueError
            costs.native()
        except (TypeError, ValueError, RecursionError, OverflowError, EngineError):
            raise EngineError(f"{where} has step costs that cannot be read; build the engine again") from None
        return costs


@dataclass(frozen=True)
class Step:
    """A step that is measured. Its seconds are the median of several."""

    sequences: Rows
    with_logits: bool
    fitted: bool = True


@dataclass(frozen=True)
class Measured:
    """Steps and what they took."""

    steps: list[Step]
    shapes: list[native.StepShape]
    seconds: list[float]

    def errors(self, cost: native.StepCost, fitted: bool | None = None) -> list[float]:
        """|predicted / measured − 1| of each step; `fitted`: of those alone that were, or were not, fitted to."""
        return [
            abs(cost.seconds(shape) / seconds - 1)
            for step, shape, seconds in zip(self.steps, self.shapes, self.seconds, strict=True)
            if fitted is None or step.fitted == fitted
        ]


def measure(backend: native.Backend, progress: Progress = silent) -> Measured:
    """Times steps of a backend that nobody else uses, for a few seconds."""
    limits = backend.limits
    context, pages = _room(limits)
    timer = native.StepTimer(backend, pages)
    progress("calibrate", 0, MOST_ROUNDS)
    steps: list[Step] = []
    for series in _series(limits, context, pages):
        for step in series:
            steps.append(step)
            if timer.seconds(step.sequences, step.with_logits) > LONGEST_STEP_SECONDS:
                break
    steps += [step for step in _mixed(limits, context, steps) if _pages(limits, step.sequences) <= pages]
    times: list[list[float]] = [[] for _ in steps]
    # Round after round, so that whatever else the machine does for a moment spoils one time of many steps, and not all
    # of one.
    end = time.monotonic() + BUDGET_SECONDS
    for done in range(MOST_ROUNDS):
        for step, each in zip(steps, times, strict=True):
            each.append(timer.seconds(step.sequences, step.with_logits))
        progress("calibrate", done + 1, MOST_ROUNDS)
        if time.monotonic() > end:
            break
    progress("calibrate", MOST_ROUNDS, MOST_ROUNDS)
    shapes = [timer.shape(step.sequences, step.with_logits) for step in steps]
    return Measured(steps, shapes, [statistics.median(each) for each in times])


def _room(limits: native.ModelLimits) -> tuple[int, int]:
    """(longest context, pages of each layer group) that are measured with."""
    page = limits.page_tokens
    page_bytes = max(1, sum(group.page_bytes for group in limits.groups))
    most = max(2, int(available_memory() * POOL_SHARE) // page_bytes)
    context = min(limits.max_seq_len, LONGEST_CONTEXT, most * page)
    longest_step = -(-min(limits.max_num_tokens, limits.max_seq_len) // page)
    return context, min(most, max(-(-context // page), limits.max_batch_size, longest_step))


def powers_of_two(least: int, most: int) -> list[int]:
    """`least` times 1, 2, 4, … below `most`, and `most`."""
    return [n for n in (least << i for i in range(32)) if n < most] + [most]


def _pages(limits: native.ModelLimits, sequences: Rows) -> int:
    return sum(-(-(rows + first) // limits.page_tokens) for rows, first in sequences)


def _series(limits: native.ModelLimits, context: int, pages: int) -> list[list[Step]]:
    """Series of growing steps: decode and prompts by their number of rows, and both by their context."""
    batch = min(limits.max_batch_size, pages)
    first = min(limits.page_tokens, limits.max_seq_len) - 1
    chunk = min(limits.max_num_tokens, context)
    decode = [[(1, first)] * n for n in powers_of_two(1, batch)]
    behind = context - min(64, chunk)
    shared = {n: context // n // limits.page_tokens * limits.page_tokens for n in (4, 8) if n <= batch}  # whole pages
    return [
        [Step(rows, True) for rows in decode],
        [Step(rows, False) for rows in decode],
        [Step([(n, 0)], False) for n in powers_of_two(1, chunk)],
        [Step([(1, n - 1)], True) for n in (context // 4, context // 2, context) if n > 0],
        [Step([(1, each - 1)] * n, True) for n, each in shared.items() if each > limits.page_tokens],
        [Step([(n, behind)], False) for n in powers_of_two(1, context - behind)[3:]],
    ]


def _mixed(limits: native.ModelLimits, context: int, steps: list[Step]) -> list[Step]:
    """Steps of decode and a prompt together, no larger than those measured: to see how good the fit is."""
    most = max(len(step.sequences) for step in steps)
    longest = max(step.sequences[0][0] for step in steps)
    mixed = []
    for sequences in {max(1, most // 4), max(1, most // 2)}:
        at = max(0, context // (2 * sequences + 2) - 1)
        rows = min(longest // 2, limits.max_num_tokens - sequences)
        if rows > 1 and sequences < limits.max_batch_size:
            mixed.append(Step([(1, at)] * sequences + [(rows, min(at, context - rows))], True, fitted=False))
        mixed.append(Step([(1, at)] * sequences, True, fitted=False))
    return mixed


# ---- the fit --------------------------------------------------------------------------------------------------------


def fit(measured: Measured, cpu: str, threads: int) -> StepCosts:
    """The costs, none of them negative, with the least squares of relative errors."""
    chosen = [i for i, step in enumerate(measured.steps) if step.fitted]
    shapes = [measured.shapes[i] for i in chosen]
    seconds = np.array([measured.seconds[i] for i in chosen])
    rows = np.array([shape.rows for shape in shapes])
    logit_rows = np.array([shape.logit_rows for shape in shapes])
    row_counts, logit_counts = _positive(rows), _positive(logit_rows)
    others = np.array([[s.sequences, s.decode_kv_bytes, s.prefill_kv_bytes] for s in shapes])
    matrix = np.hstack([_rises(rows, row_counts), _rises(logit_rows, logit_counts), others])
    weighted = matrix / seconds[:, None]
    scale = np.maximum(np.linalg.norm(weighted, axis=0), 1e-300)
    costs = nonnegative_least_squares(weighted / scale, np.ones(len(seconds))) / scale
    n, m = len(row_counts), len(logit_counts)
    fitted = StepCosts(
        cpu=cpu,
        threads=threads,
        rows=list(zip(row_counts, np.cumsum(costs[:n]).tolist(), strict=True)),
        logit_rows=list(zip(logit_counts, np.cumsum(costs[n : n + m]).tolist(), strict=True)),
        sequence=float(costs[n + m]),
        decode_kv_byte=float(costs[n + m + 1]),
        prefill_kv_byte=float(costs[n + m + 2]),
        error=0.0,
    )
    error = statistics.median(measured.errors(fitted.native(), fitted=False))
    return StepCosts(**{**asdict(fitted), "error": error})


def _positive(counts: npt.NDArray[np.int64]) -> list[int]:
    return [int(n) for n in np.unique(counts) if n > 0]


def _rises(counts: npt.NDArray[np.int64], knots: list[int]) -> F64:
    """[steps, knots]: how much of the way from one knot to the next a count has gone, so that costs of these ways that
    are not negative make a function that never falls."""
    below = np.array([0, *knots[:-1]])
    rises: F64 = np.clip((counts[:, None] - below) / (np.array(knots) - below), 0, 1)
    return rises


def nonnegative_least_squares(a: F64, b: F64) -> F64:
    """The x ≥ 0 of least |a·x − b|. C. Lawson, R. Hanson, "Solving Least Squares Problems", 1974, algorithm NNLS."""
    x = np.zeros(a.shape[1])
    free = np.zeros(a.shape[1], bool)
    for _ in range(10 * a.shape[1]):
        gradient = a.T @ (b - a @ x)
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= 1e-10:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            if trial[free].min(initial=1.0) > 0:
                break
            # To the border of what is allowed, and whoever stands there is held at zero.
            falling = free & (trial <= 0)
            step = (x[falling] / np.maximum(x[falling] - trial[falling], 1e-300)).min()
            x += step * (trial - x)
            free &= x > 1e-14
            x[~free] = 0
        x = trial
    return x
