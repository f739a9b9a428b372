"""Where the time of a step goes: what each op of the plan takes, beside what it must take at the machine's limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precast._native import runtime as native
from precast.benchmark.bound import StepWork
from precast.builder.machine_limits import Limits
from precast.builder.plan import Plan, PlanOp
from precast.errors import PrecastError
from precast.planning.kv_memory import limits_of
from precast.progress import Progress, silent
from precast.runtime.memory import available_memory

STEPS = 20
"""That are measured; the median of each op counts."""

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class OpTime:
    """The ops of one place in all layers."""

    name: str
    """Of what it writes; `*` stands for the layer."""
    kernel: str
    shape: str
    """Of a linear: channels, width and epilogue; else empty."""
    calls: int
    seconds: float
    """Of all calls of a step together."""
    bound: float | None
    """Seconds that they must take on this machine (`bound.py`); None: not known."""


@dataclass(frozen=True)
class Profile:
    """A step, and with how many threads it ran."""

    num_threads: int
    limits: Limits
    batch_size: int
    rows: int
    """Of each sequence."""
    context: int
    """Tokens before them."""
    ops: list[OpTime]
    """In the order of the plan."""

    @property
    def seconds(self) -> float:
        """Of all ops."""
        return sum(op.seconds for op in self.ops)


def profile(
    engine: Path,
    batch_size: int = 1,
    rows: int = 1,
    context: int = 128,
    num_threads: int | None = None,
    progress: Progress = silent,
) -> Profile:
    """Of a step that appends `rows` tokens to each of batch_size sequences with `context` tokens.

    Raises EngineError for what is no engine, PrecastError for a step that it does not hold.
    """
    threads = num_threads or native.available_cpus()
    step = _Step(engine, batch_size, rows, context, threads)
    limits = Limits()
    samples = []
    for done in range(STEPS):
        progress("measure", done, STEPS)
        if done % (STEPS // 2) == 0:
            limits = limits.or_higher(threads)
        samples.append(step.op_seconds())
    progress("measure", STEPS, STEPS)
    times = _by_place(StepWork(engine), np.median(samples, axis=0), limits, [(rows, context)] * batch_size)
    return Profile(threads, limits, batch_size, rows, context, times)


class _Step:
    """A step that is run again and again: it writes what it has written before."""

    def __init__(self, engine: Path, batch_size: int, rows: int, context: int, threads: int) -> None:
        limits = limits_of(engine)
        for what, wanted, most in (
            ("sequences", batch_size, limits.max_batch_size),
            ("tokens in a step", batch_size * rows, limits.max_num_tokens),
            ("tokens in a sequence", context + rows, limits.max_seq_len),
        ):
            if wanted > most:
                raise PrecastError(f"{engine} was built for {most} {what}, and this asks for {wanted}")
        each = -(-(context + rows) // limits.page_tokens)
        need = batch_size * each * sum(group.page_bytes for group in limits.groups)
        if need > (room := available_memory()):
            raise PrecastError(f"the K/V of this step takes {need:,} bytes, and {room:,} are available")
        self._engine = native.Engine(engine, threads)
        self._engine.allocate_pages(batch_size * each)
        random = np.random.default_rng(0)
        self._tokens = random.integers(0, limits.vocab_size, batch_size * rows).astype(np.int32)
        self._spans = np.array([[rows, context]] * batch_size, np.int32)
        self._tables = np.arange(batch_size * each, dtype=np.int32).reshape(batch_size, each)
        self._logit_rows = np.arange(rows - 1, batch_size * rows, rows, dtype=np.int32)
        self._fill(limits)
        self.op_seconds()  # maps weights, wakes threads

    def _fill(self, limits: native.ModelLimits) -> None:
        """Computes a page and copies it into all others: attention must not read memory that nobody has written."""
        tokens = self._tokens[np.arange(min(limits.page_tokens, limits.max_num_tokens)) % len(self._tokens)]
        one = np.array([0], np.int32)
        self._engine.forward(tokens, np.array([[len(tokens), 0]], np.int32), one[None], one)
        copies = [
            (group, 0, page, limits.page_tokens)
            for group in range(len(limits.groups))
            for page in range(1, self._tables.size)
        ]
        if copies:
            self._engine.forward(one, np.array([[1, 0]], np.int32), one[None], one, np.array(copies, np.int32))

    def op_seconds(self) -> list[float]:
        return self._engine.profile(self._tokens, self._spans, self._tables, self._logit_rows)


def _by_place(
    work: StepWork, seconds: npt.NDArray[np.float64], limits: Limits, sequences: list[tuple[int, int]]
) -> list[OpTime]:
    found: dict[tuple[str, str, str], OpTime] = {}
    for i, op in enumerate(work.plan.ops):
        place = (_name(work.plan, op), op.kernel, _shape(op))
        own = work.of_op(i, sequences)
        before = found.get(place, OpTime(*place, calls=0, seconds=0.0, bound=None if own is None else 0.0))
        bound = None if own is None or before.bound is None else before.bound + own.seconds(limits)
        found[place] = OpTime(*place, before.calls + 1, before.seconds + float(seconds[i]), bound)
    return list(found.values())


def _name(plan: Plan, op: PlanOp) -> str:
    """Without what all names begin with."""
    name = plan.buffers[op.outputs[0]].name.removeprefix("transformer.")
    return re.sub(r"^layers\.\d+\.", "layers.*.", name)


def _shape(op: PlanOp) -> str:
    if op.kernel != "linear":
        return ""
    epilogue = str(op.attributes["epilogue"])
    return f"{op.attributes['n']}x{op.attributes['k']}" + ("" if epilogue == "none" else f" {epilogue}")
