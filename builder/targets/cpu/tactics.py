"""Tactics: what kernels may do in several ways without changing a bit, chosen by timing on this machine.

For each shape of linear a trial engine with that one linear runs with every candidate; the winner goes into the plan.
Timings are kept in the build cache, so that a rebuild on the same machine gives the same bytes and takes no time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from precast._native import runtime
from precast.builder import build_cache
from precast.builder.engine_file import EngineWriter
from precast.builder.plan import Attribute, Buffer, Plan, PlanOp
from precast.errors import BuildError
from precast.plugins.kv_append.reference import PAGE_TOKENS
from precast.plugins.linear.layout import LAYOUTS, PANEL
from precast.progress import Progress

Array = npt.NDArray[Any]

BLOCK_BYTES = (128 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20)
"""Candidates of `block_bytes`: the weights of one piece of work, which should stay in the L2 cache while row tile after
row tile reads them, and be many enough to balance threads. The first is used unless another one is clearly faster."""

CLEARLY_FASTER = 0.9
"""A candidate's time must be at most this share of the first one's: less is noise on shared machines."""

TRIAL_BYTES = 8 << 20
"""Larger weights are tried with fewer channels: how a block behaves depends on K, not on how many blocks there are."""

ROWS = (1, 16, 64)
"""Decode of one sequence, of a batch, and prefill; a candidate's score is the geometric mean of its times."""

SECONDS_PER_SHAPE = 0.5
LEAST_ROUNDS, MOST_ROUNDS = 5, 30

TRIAL_VERSION = 0
"""Raised when kernels change so much that old timings mislead."""


@dataclass(frozen=True)
class LinearShape:
    """What a linear's speed depends on. `n` and `k` as in the plan; `sampled`: it runs on S rows, at most the batch."""

    tag: str
    group: int
    n: int
    k: int
    epilogue: str
    sampled: bool

    def key(self) -> str:
        """Names it in config.json and in the timing cache."""
        group = f"/{self.group}" if self.group else ""
        return f"{self.tag}{group} {self.n}x{self.k} {self.epilogue}{' sampled' if self.sampled else ''}"


def choose(
    shapes: list[LinearShape], attributes: dict[str, Attribute], cpu: str, threads: int, progress: Progress
) -> dict[LinearShape, int]:
    """Shape → block_bytes. `attributes`: of the plan. Shapes whose weights fit one block have nothing to choose."""
    chosen: dict[LinearShape, int] = {}
    machine = f"{cpu} | {attributes['isa']} | {threads} threads | trial {TRIAL_VERSION}"
    known = build_cache.load("timings.json")
    fresh: dict[str, Any] = {}
    to_time = [s for s in dict.fromkeys(shapes) if _weight_bytes(s) > BLOCK_BYTES[0]]
    for done, shape in enumerate(to_time):
        progress("time", done, len(to_time))
        key = f"{machine} | {shape.key()}"
        block_bytes = known.get(key)
        if block_bytes not in BLOCK_BYTES:
            block_bytes = fresh[key] = _fastest(shape, attributes, threads)
        chosen[shape] = block_bytes
    if to_time:
        progress("time", len(to_time), len(to_time))
    if fresh:
        build_cache.store("timings.json", build_cache.load("timings.json") | fresh)
    return chosen


def _fastest(shape: LinearShape, attributes: dict[str, Attribute], threads: int) -> int:
    """The best candidate; another one than the first has to win twice, since machines are shared."""
    winner = best(time_candidates(shape, attributes, threads))
    if winner == BLOCK_BYTES[0]:
        return winner
    again = time_candidates(shape, attributes, threads)
    return best({candidate: again[candidate] for candidate in (BLOCK_BYTES[0], winner)})


def best(scores: dict[int, float]) -> int:
    """The candidate of the lowest score, unless the first one is about as good."""
    first, fastest = BLOCK_BYTES[0], min(scores, key=lambda c: scores[c])
    return fastest if scores[fastest] <= CLEARLY_FASTER * scores[first] else first


def time_candidates(shape: LinearShape, attributes: dict[str, Attribute], threads: int) -> dict[int, float]:
    """block_bytes → geometric mean over row counts of the shortest time of a step, in seconds.

    Candidates are interleaved, so that a slow moment of a shared machine meets all of them.
    """
    limit = int(attributes["max_batch_size" if shape.sampled else "max_num_tokens"])
    counts = sorted({min(rows, limit) for rows in ROWS})
    trial = _trial(shape, attributes, max(counts))
    with TemporaryDirectory(prefix="precast-trial-") as folder:
        try:
            engines = {c: trial.open(Path(folder) / str(c), c, threads) for c in BLOCK_BYTES}
        except OSError as error:
            raise BuildError(
                f"timing kernels needs {len(BLOCK_BYTES) * TRIAL_BYTES >> 20} MiB in {folder}: {error.strerror}; set "
                "TMPDIR to a folder with room"
            ) from None
        best_of: dict[tuple[int, int], float] = {}
        stop = time.perf_counter() + SECONDS_PER_SHAPE
        rounds = 0
        while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() < stop):
            for rows in counts:
                for candidate, engine in engines.items():
                    seconds = _step(engine, rows)
                    best_of[candidate, rows] = min(seconds, best_of.get((candidate, rows), seconds))
            rounds += 1
    return {c: geometric_mean([best_of[c, rows] for rows in counts]) for c in BLOCK_BYTES}


def _weight_bytes(shape: LinearShape) -> int:
    return shape.n * shape.k * LAYOUTS[shape.tag].packed.itemsize


def _step(engine: runtime.Engine, rows: int) -> float:
    tokens, span = np.zeros(rows, np.int32), np.array([[rows, 0]], np.int32)
    pages, logit_rows = np.arange(-(-rows // PAGE_TOKENS), dtype=np.int32)[None], np.zeros(1, np.int32)
    begin = time.perf_counter()
    engine.forward(tokens, span, pages, logit_rows)
    return time.perf_counter() - begin


@dataclass(frozen=True)
class _Trial:
    """An engine around one linear: its plan, whose linear lacks the candidate still, and its sections."""

    plan: Plan
    sections: dict[str, tuple[str, Array]]

    def open(self, path: Path, block_bytes: int, threads: int) -> runtime.Engine:
        """Writes the engine with a candidate and loads it."""
        ops = [
            replace(op, attributes=op.attributes | {"block_bytes": block_bytes}) if op.kernel == "linear" else op
            for op in self.plan.ops
        ]
        plan = replace(self.plan, ops=tuple(ops)).to_bytes()
        lengths = [(name, tag, data.nbytes) for name, (tag, data) in self.sections.items()]
        writer = EngineWriter(path, [("plan", "plan.v0", len(plan)), *lengths])
        writer.add("plan", plan)
        for name, (_, data) in self.sections.items():
            writer.add(name, data)
        writer.close()
        engine = runtime.Engine(path, threads)
        engine.allocate_pages(-(-int(self.plan.attributes["max_num_tokens"]) // PAGE_TOKENS))
        return engine


def _trial(shape: LinearShape, attributes: dict[str, Attribute], rows: int) -> _Trial:
    """embed → [quantize] → the linear; and logits of one panel, since an engine needs some."""
    layout = LAYOUTS[shape.tag]
    quantized = layout.inner == 4
    step = 2 * PANEL
    n = max(step, min(-(-shape.n // step), TRIAL_BYTES // (shape.k * layout.packed.itemsize) // step) * step)
    k_step = shape.group or layout.inner
    rng = np.random.default_rng(0)

    def weight(tag: str, channels: int) -> Array:
        panels = (channels // PANEL, -(-shape.k // k_step) * k_step // LAYOUTS[tag].inner, PANEL, LAYOUTS[tag].inner)
        if LAYOUTS[tag].inner == 4:
            return rng.integers(1, 128, panels).astype(LAYOUTS[tag].packed)
        return rng.standard_normal(panels, np.float32).astype(LAYOUTS[tag].packed)

    sections: dict[str, tuple[str, Array]] = {
        "table": ("rows.f32", rng.standard_normal((PANEL, shape.k), np.float32)),
        "weight": (shape.tag, weight(shape.tag, n)),
        "head": ("panel16.f32", np.zeros((1, shape.k, PANEL, 1), np.float32)),
    }
    if quantized:
        sections["scale"] = ("vector.f32", np.ones(n, np.float32))
    gated = shape.epilogue == "gated"
    buffers = [
        Buffer("x", "f32", "T", shape.k, 0, 0),
        Buffer("q", "i8", "T", shape.k, shape.group, 1),
        Buffer("y", "f32", "T", n // 2 if gated else n, 0, 2),
        Buffer("last", "f32", "S", shape.k, 0, 3),
        Buffer("logits", "f32", "S", PANEL, 0, 4),
    ]
    linear: dict[str, Attribute] = {"k": shape.k, "has_bias": 0}
    # A residual is one more read and an activation a little more work, whatever the block.
    epilogue: dict[str, Attribute] = {"epilogue": "gated", "activation": "silu"} if gated else {"epilogue": "none"}
    ops = [
        PlanOp("embed", (), (0,), ("table",), {"scale": 1.0, "learned_positions": 0}),
        *([PlanOp("quantize", (0,), (1,), ())] if quantized else []),
        PlanOp(
            "linear",
            (1 if quantized else 0,),
            (2,),
            ("weight", "scale") if quantized else ("weight",),
            linear | {"n": n} | epilogue,
        ),
        PlanOp("gather_rows", (0,), (3,), ()),
        PlanOp("linear", (3,), (4,), ("head",), linear | {"n": PANEL, "epilogue": "none"}),
    ]
    small: dict[str, Attribute] = dict.fromkeys(("num_layers", "num_heads", "num_kv_heads", "head_size"), 1)
    limits: dict[str, Attribute] = {"max_batch_size": 1, "max_num_tokens": rows, "max_seq_len": rows}
    sizes: dict[str, Attribute] = {"vocab_size": PANEL, "hidden_size": shape.k}
    return _Trial(Plan(attributes | small | limits | sizes, tuple(buffers), tuple(ops)), sections)
