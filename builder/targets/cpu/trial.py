"""Trial engines: ops of one shape, some for each candidate of a tactic, whose times are taken one by one.

Every op has weights, or keys and values, of its own, more than the caches hold together: a real engine's layers find
theirs in memory too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from precast._native import runtime
from precast.builder.engine_file import EngineWriter
from precast.builder.plan import Attribute, Buffer, Plan, PlanOp
from precast.builder.targets.cpu.shapes import AttentionShape, LinearShape, Shape
from precast.errors import BuildError
from precast.plugins.kv_append.reference import PAGE_TOKENS
from precast.plugins.linear.layout import LAYOUTS, PANEL, padded_shape

Array = npt.NDArray[Any]

Candidate = dict[str, Attribute]
"""Attributes that an op gets."""

WEIGHT_BYTES = 8 << 20
"""Larger weights are tried with fewer channels, and their time is that of all of them: each channel costs the same."""

MOST_OPS = 16
"""Of a candidate. So many of the smallest weights do not fill the caches; those of a model so small do not either."""

MOST_CACHE_BYTES = 128 << 20


class Trial:
    """A loaded trial engine; the `with` block's end removes it."""

    def __init__(self, parts: _Parts, threads: int) -> None:
        self._parts = parts
        self._folder = TemporaryDirectory(prefix="precast-trial-")
        try:
            self._engine = parts.open(Path(self._folder.name) / "rank0.engine", threads)
        except OSError as error:
            self._folder.cleanup()
            raise BuildError(
                f"timing kernels needs {parts.size >> 20} MiB in {self._folder.name}: {error.strerror}; set TMPDIR to "
                "a folder with room"
            ) from None
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del self._engine
        self._folder.cleanup()

    @property
    def rows(self) -> list[int]:
        """Row counts of steps to time, rising."""
        return self._parts.rows

    @property
    def scale(self) -> float:
        """What an op of the shape takes, of what one of the trial does."""
        return self._parts.scale

    def seconds(self, rows: int) -> list[float]:
        """Of an op of each candidate in a step of so many rows: the shortest of its ops, since machines are shared."""
        times = self._engine.profile(*self._parts.step(rows))
        return [self.scale * min(times[op] for op in ops) for ops in self._parts.timed]


@dataclass(frozen=True)
class _Parts:
    """What a trial engine is made of."""

    plan: Plan
    sections: dict[str, tuple[str, Array]]
    timed: list[list[int]]
    """Numbers of each candidate's ops in the plan."""
    rows: list[int]
    scale: float
    attention: AttentionShape | None = None

    @property
    def size(self) -> int:
        """Bytes of the file, but for a little."""
        return sum(data.nbytes for _, data in self.sections.values())

    def open(self, path: Path, threads: int) -> runtime.Engine:
        """Writes the engine and loads it."""
        plan = self.plan.to_bytes()
        lengths = [(name, tag, data.nbytes) for name, (tag, data) in self.sections.items()]
        writer = EngineWriter(path, [("plan", "plan.v0", len(plan)), *lengths])
        writer.add("plan", plan)
        for name, (_, data) in self.sections.items():
            writer.add(name, data)
        writer.close()
        engine = runtime.Engine(path, threads)
        longest = int(self.plan.attributes["max_seq_len"])
        pages = -(-longest // PAGE_TOKENS) * int(self.plan.attributes["max_batch_size"])
        engine.allocate_pages(pages)
        # One page is computed and copied to the others: memory that nobody has written is read from no memory.
        tokens, span = (
            np.zeros(min(PAGE_TOKENS, longest), np.int32),
            np.array([[min(PAGE_TOKENS, longest), 0]], np.int32),
        )
        copies = np.array([[0, 0, page, PAGE_TOKENS] for page in range(1, pages)], np.int32).reshape(-1, 4)
        first, row = np.zeros((1, 1), np.int32), np.zeros(1, np.int32)
        engine.forward(tokens, span, first, row)
        engine.forward(tokens, span, first, row, copies)
        return engine

    def step(self, rows: int) -> tuple[Array, Array, Array, Array]:
        """Tokens, spans, block tables and logit rows."""
        sequences = [(rows, 0)] if self.attention is None else self.attention.sequences(rows)
        pages = -(-int(self.plan.attributes["max_seq_len"]) // PAGE_TOKENS)
        tables = np.arange(pages * len(sequences), dtype=np.int32).reshape(-1, pages)
        return np.zeros(rows, np.int32), np.array(sequences, np.int32), tables, np.zeros(1, np.int32)


def open_trial(shape: Shape, candidates: Sequence[Candidate], attributes: dict[str, Attribute], threads: int) -> Trial:
    """A trial engine of a shape. `attributes`: of the plan that has it. Raises BuildError when there is no room."""
    if isinstance(shape, LinearShape):
        return Trial(_linear_parts(shape, candidates, attributes), threads)
    return Trial(_attention_parts(shape, candidates, attributes), threads)


def _linear_parts(shape: LinearShape, candidates: Sequence[Candidate], attributes: dict[str, Attribute]) -> _Parts:
    """embed → [quantize] → linears; and logits of one panel, since an engine needs some."""
    layout = LAYOUTS[shape.tag]
    quantized = layout.inner == 4
    kind, _, activation = shape.epilogue.partition(" ")
    step = 2 * PANEL
    _, padded_k = padded_shape(shape.tag, PANEL, shape.k, shape.group)
    channels = max(step, WEIGHT_BYTES // (padded_k * layout.packed.itemsize) // step * step)
    n = min(channels, -(-shape.n // step) * step)
    weight_bytes = n * padded_k * layout.packed.itemsize
    rng = np.random.default_rng(0)
    panels = (n // PANEL, padded_k // layout.inner, PANEL, layout.inner)
    if quantized:
        weight = rng.integers(1, 128, panels, np.int8).astype(layout.packed)
    else:
        weight = rng.standard_normal(panels, np.float32).astype(layout.packed)
    sections: dict[str, tuple[str, Array]] = {
        "table": ("rows.f32", rng.standard_normal((PANEL, shape.k), np.float32)),
        "head": ("panel16.f32", np.zeros((1, shape.k, PANEL, 1), np.float32)),
    }
    if quantized:
        sections["scale"] = ("vector.f32", np.ones(n, np.float32))
    columns = n // 2 if kind == "gated" else n
    buffers = [
        Buffer("x", "f32", "T", shape.k, 0, 0),
        Buffer("q", "i8", "T", shape.k, shape.group, 1),
        Buffer("y", "f32", "T", columns, 0, 2),
        Buffer("z", "f32", "T", columns, 0, 3),
        Buffer("last", "f32", "S", shape.k, 0, 4),
        Buffer("logits", "f32", "S", PANEL, 0, 5),
    ]
    read = 1 if quantized else 0
    common: Candidate = {"k": shape.k, "has_bias": 0}
    plain: Candidate = common | {"n": n, "epilogue": "none"}
    own: Candidate = common | {"n": n, "epilogue": kind} | ({"activation": activation} if activation else {})
    ops = [PlanOp("embed", (), (0,), ("table",), {"scale": 1.0, "learned_positions": 0})]
    if quantized:
        ops.append(PlanOp("quantize", (0,), (1,), ()))

    def linear(candidate: Candidate) -> None:
        """With a weight of its own, to y and z in turn. What is added, if anything, was written by the one before."""
        name, written = f"weight {len(ops)}", 2 + len(ops) % 2
        sections[name] = (shape.tag, weight)
        inputs = (read, 5 - written) if candidate["epilogue"] == "add" else (read,)
        ops.append(PlanOp("linear", inputs, (written,), (name, "scale") if quantized else (name,), candidate))

    linear(plain if kind == "add" else own)  # it also finds the threads asleep, and does not count
    timed: list[list[int]] = [[] for _ in candidates]
    for _ in range(min(MOST_OPS, -(-cache_bytes() // (weight_bytes * len(candidates))))):
        for numbers, candidate in zip(timed, candidates, strict=True):
            numbers.append(len(ops))
            linear(own | candidate)
    ops.append(PlanOp("gather_rows", (0,), (4,), ()))
    ops.append(PlanOp("linear", (4,), (5,), ("head",), common | {"n": PANEL, "epilogue": "none"}))

    rows = shape.rows(attributes)
    plan = _plan(
        attributes,
        {"max_batch_size": 1, "max_num_tokens": max(PAGE_TOKENS, *rows), "max_seq_len": max(rows)},
        buffers,
        ops,
    )
    return _Parts(plan, sections, timed, rows, shape.n / n)


def _attention_parts(
    shape: AttentionShape, candidates: Sequence[Candidate], attributes: dict[str, Attribute]
) -> _Parts:
    """embed → layers of KV append and attention."""
    rows = shape.rows(attributes)
    batch = max(len(shape.sequences(count)) for count in rows)
    # The batch's sequences are to put those of the step before out of the caches, in each layer or in a few together.
    layer_bytes = shape.sequence_bytes * batch * len(candidates)
    each = min(MOST_OPS, -(-4 * cache_bytes() // layer_bytes))
    qkv = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    heads = shape.num_heads * shape.head_size
    sections: dict[str, tuple[str, Array]] = {
        "table": ("rows.f32", np.random.default_rng(0).standard_normal((PANEL, qkv), np.float32)),
        "head": ("panel16.f32", np.zeros((1, qkv, PANEL, 1), np.float32)),
    }
    if shape.alibi:
        sections["slopes"] = ("vector.f32", np.full(shape.num_heads, 0.01, np.float32))
    buffers = [
        Buffer("qkv", "f32", "T", qkv, 0, 0),
        Buffer("q", "f32", "T", heads, 0, 1),
        Buffer("y", "f32", "T", heads, 0, 2),
        Buffer("last", "f32", "S", qkv, 0, 3),
        Buffer("logits", "f32", "S", PANEL, 0, 4),
    ]
    append: Candidate = {"clip": 0.0, "qk_norm": "none", "rotary_dim": 0}
    attend: Candidate = {
        "scale": shape.head_size**-0.5,
        "window": shape.window,
        "softcap": 30.0 if shape.softcap else 0.0,
        "alibi": int(shape.alibi),
    }
    ops = [PlanOp("embed", (), (0,), ("table",), {"scale": 1.0, "learned_positions": 0})]
    timed: list[list[int]] = [[] for _ in candidates]
    for layer in range(each * len(candidates)):
        own: Candidate = {"layer": layer}
        timed[layer % len(candidates)].append(len(ops) + 1)
        ops.append(PlanOp("rope_kv_append", (0,), (1,), (), append | own))
        slopes = ("slopes",) if shape.alibi else ()
        ops.append(PlanOp("paged_attention", (1,), (2,), slopes, attend | own | candidates[layer % len(candidates)]))
    ops.append(PlanOp("gather_rows", (0,), (3,), ()))
    ops.append(PlanOp("linear", (3,), (4,), ("head",), {"k": qkv, "has_bias": 0, "n": PANEL, "epilogue": "none"}))
    plan = _plan(
        attributes,
        {
            "max_batch_size": batch,
            "max_num_tokens": max(PAGE_TOKENS, *rows),
            "max_seq_len": shape.context,
            "num_layers": each * len(candidates),
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "head_size": shape.head_size,
        },
        buffers,
        ops,
    )
    return _Parts(plan, sections, timed, rows, 1.0, shape)


def _plan(
    attributes: dict[str, Attribute], own: dict[str, Attribute], buffers: list[Buffer], ops: list[PlanOp]
) -> Plan:
    small: dict[str, Attribute] = dict.fromkeys(("num_layers", "num_heads", "num_kv_heads", "head_size"), 1)
    sizes: dict[str, Attribute] = {"vocab_size": PANEL, "hidden_size": buffers[0].columns}
    return Plan(attributes | small | sizes | own, tuple(buffers), tuple(ops))


def cache_bytes() -> int:
    """Twice the largest cache of a CPU: who reads so much in turn finds little of it there."""
    found = [16 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
            found.append(2 * int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1:], 0))
        except (OSError, ValueError):
            continue
    return min(MOST_CACHE_BYTES, max(found))
