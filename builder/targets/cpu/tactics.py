"""Tactics: what kernels may do in several ways without changing a bit, chosen by timing on this machine.

For each shape of linear and attention a trial engine runs with every candidate; the winner goes into the plan, and its
times are recorded beside what the machine can do at most. Timings are kept in the build cache, so that a rebuild on the
same machine gives the same bytes and takes no time.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import geometric_mean
from typing import Any

from precast.builder import build_cache
from precast.builder.machine_limits import Limits
from precast.builder.plan import Attribute
from precast.builder.targets.cpu.shapes import LinearShape, Shape
from precast.builder.targets.cpu.trial import Candidate, Trial, open_trial
from precast.progress import Progress

Times = dict[int, float]
"""Rows of a step → seconds of the op."""

CLEARLY_FASTER = 0.9
"""A candidate's time must be at most this share of the first one's: less is noise on shared machines."""

LEAST_ROUNDS, MOST_ROUNDS = 3, 30

TRIAL_VERSION = 2
"""Raised when kernels or trials change so much that old timings mislead."""


@dataclass(frozen=True)
class Effort:
    """What an optimization level spends on timing."""

    block_bytes: tuple[int, ...]
    """Candidates of a linear's `block_bytes`: the weights of one piece of work, which should stay in the L2 cache while
    row tile after row tile reads them, and be many enough to balance threads. The first is used unless another one is
    clearly faster."""
    seconds: float
    """For a shape; twice as long when another candidate than the first wins, which has to win twice."""
    budget: float
    """Seconds after which no other shape is begun: those that are left get the first candidate, without times."""

    def candidates(self, shape: Shape) -> list[Candidate]:
        """Attributes that its ops can get. Weights that fit one block have nothing to choose, nor has attention."""
        if isinstance(shape, LinearShape) and shape.weight_bytes > self.block_bytes[0]:
            return [{"block_bytes": size} for size in self.block_bytes]
        return [{}]


EFFORTS = {
    1: Effort((128 << 10, 512 << 10), 0.1, 8.0),
    2: Effort((128 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20), 0.5, 25.0),
    3: Effort((128 << 10, 32 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20), 3.0, 120.0),
}
"""By optimization level; with level 0 nothing is timed."""


@dataclass(frozen=True)
class Tactic:
    """What was chosen for a shape."""

    choice: Candidate
    """Attributes of its ops; empty: there was nothing to choose."""
    seconds: Times
    """How long the op took then; empty: it was not timed, for want of time."""


@dataclass(frozen=True)
class Tactics:
    """What was chosen for the shapes of one plan."""

    threads: int
    limits: Limits
    """Of the machine, measured around the timings."""
    chosen: dict[Shape, Tactic]
    ops: Counter[Shape]
    """How many ops have a shape."""

    def to_json(self) -> dict[str, Any]:
        """For config.json."""
        return {"threads": self.threads, "limits": asdict(self.limits), "shapes": dict(map(self._row, self.chosen))}

    def _row(self, shape: Shape) -> tuple[str, dict[str, Any]]:
        tactic = self.chosen[shape]
        shares = {rows: round(share, 4) for rows, share in _shares(shape, tactic, self.limits).items()}
        row = {"ops": self.ops[shape], "choice": tactic.choice, "seconds": tactic.seconds, "share_of_limit": shares}
        return shape.key(), row


def choose(
    shapes: Sequence[Shape],
    attributes: dict[str, Attribute],
    cpu: str,
    threads: int,
    level: int,
    progress: Progress,
) -> Tactics:
    """Chooses for the `shapes` of ops of a plan with these `attributes`. `level`: 1 … 3, see EFFORTS."""
    ops = Counter(shapes)
    machine = f"{cpu} | {attributes['isa']} | {threads} threads | trial {TRIAL_VERSION}"
    keys = {shape: f"{machine} | level {level} | {shape.key()} | rows {shape.rows(attributes)}" for shape in ops}
    stored = build_cache.load("timings.json")
    effort = EFFORTS[level]
    chosen = {shape: _read_tactic(stored.get(keys[shape]), shape, attributes, effort) for shape in ops}
    limits = _read_limits(stored.get(f"{machine} | limits")) or Limits().or_higher(threads)
    to_time = [shape for shape, tactic in chosen.items() if tactic is None]
    timed = _time_all(to_time, ops, attributes, threads, effort, progress)
    if any(share > 1 for shape in to_time for share in _shares(shape, timed[shape], limits).values()):
        limits = limits.or_higher(threads)  # other work on the machine may have lowered what was measured
    fresh: dict[str, Any] = {keys[shape]: asdict(tactic) for shape, tactic in timed.items() if tactic.seconds}
    fresh[f"{machine} | limits"] = asdict(limits)
    if any(stored.get(key) != value for key, value in fresh.items()):
        build_cache.store("timings.json", build_cache.load("timings.json") | fresh)
    known = {shape: timed[shape] if tactic is None else tactic for shape, tactic in chosen.items()}
    return Tactics(threads, limits, known, ops)


def _shares(shape: Shape, tactic: Tactic, limits: Limits) -> dict[int, float]:
    """By rows: of the time that a shape takes, what the machine needs at its limits."""
    return {rows: shape.work(rows).seconds(limits) / seconds for rows, seconds in tactic.seconds.items()}


def _time_all(
    shapes: list[Shape],
    ops: Counter[Shape],
    attributes: dict[str, Attribute],
    threads: int,
    effort: Effort,
    progress: Progress,
) -> dict[Shape, Tactic]:
    """The tactics of shapes, within the budget: those with a choice and the most weights first."""

    def weight(shape: Shape) -> tuple[bool, int]:
        size = shape.weight_bytes if isinstance(shape, LinearShape) else shape.sequence_bytes
        return len(effort.candidates(shape)) > 1, size * ops[shape]

    found: dict[Shape, Tactic] = {}
    end = _now() + effort.budget
    for done, shape in enumerate(sorted(shapes, key=weight, reverse=True)):
        progress("time", done, len(shapes))
        candidates = effort.candidates(shape)
        # Time that one shape does not use is left for the others.
        seconds = min(effort.seconds, (end - _now()) / (2 * (len(shapes) - done)))
        found[shape] = Tactic(candidates[0], {})
        if seconds > 0:
            with open_trial(shape, candidates, attributes, threads) as trial:
                found[shape] = _fastest(trial, candidates, seconds)
    if shapes:
        progress("time", len(shapes), len(shapes))
    return found


def _fastest(trial: Trial, candidates: list[Candidate], seconds: float) -> Tactic:
    """The best candidate of a trial; another one than the first has to win twice, since machines are shared."""
    times = time_candidates(trial, len(candidates), seconds if len(candidates) > 1 else 0.0)
    winner = best(times)
    if winner != 0:
        again = time_candidates(trial, len(candidates), seconds)
        winner = winner * best([again[0], again[winner]])
        times = [{n: min(t, other[n]) for n, t in one.items()} for one, other in zip(times, again, strict=True)]
    return Tactic(candidates[winner], {n: float(f"{t:.4g}") for n, t in times[winner].items()})


def best(times: Sequence[Times]) -> int:
    """The candidate whose geometric mean over row counts is lowest, unless the first one's is about as low."""
    scores = [geometric_mean(of_rows.values()) for of_rows in times]
    fastest = scores.index(min(scores))
    return fastest if scores[fastest] <= CLEARLY_FASTER * scores[0] else 0


def time_candidates(trial: Trial, candidates: int, seconds: float) -> list[Times]:
    """Of each candidate the shortest times, in rounds for so many seconds: a slow moment of a shared machine then meets
    all of them."""
    shortest: list[Times] = [dict.fromkeys(trial.rows, math.inf) for _ in range(candidates)]
    end = _now() + seconds
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and _now() > end:
            break
        for rows in reversed(trial.rows):  # what few rows find in the caches would be the most of what they need
            for times, found in zip(shortest, trial.seconds(rows), strict=True):
                times[rows] = min(times[rows], found)
    return shortest


def _now() -> float:
    return time.perf_counter()


def _read_tactic(stored: Any, shape: Shape, attributes: dict[str, Attribute], effort: Effort) -> Tactic | None:
    """What the build cache has of a shape; None: nothing, or something else."""
    try:
        tactic = Tactic(stored["choice"], {int(n): float(t) for n, t in stored["seconds"].items()})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    good = tactic.choice in effort.candidates(shape) and list(tactic.seconds) == shape.rows(attributes)
    return tactic if good and all(0 < t < math.inf for t in tactic.seconds.values()) else None


def _read_limits(stored: Any) -> Limits | None:
    try:
        limits = Limits(*(float(stored[field.name]) for field in fields(Limits)))
    except (KeyError, TypeError, ValueError):
        return None
    return limits if all(0 < value < math.inf for value in asdict(limits).values()) else None
