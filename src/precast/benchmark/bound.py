"""The least time that a step of an engine can take on a machine: the longer of reading what it must read and of
computing what it must compute, at the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from precast._native import runtime as native
from precast.builder.engine_file import EngineFile
from precast.builder.plan import Plan
from precast.errors import EngineError

KV_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1}
SCALED_KV = ("int8", "fp8")
"""With an f32 scale for each token and head of K and of V."""


@dataclass(frozen=True)
class Limits:
    """What the machine can do at most, per second, with some number of threads: bytes read from memory, and
    multiplications and additions as the linears of its ISA level make them."""

    read_bytes: float = 0.0
    i8_ops: float = 0.0
    bf16_ops: float = 0.0
    f32_ops: float = 0.0

    def ops(self, dtype: str) -> float:
        """Of i8, bf16 or f32."""
        return float(getattr(self, f"{dtype}_ops"))

    def or_higher(self, num_threads: int) -> Limits:
        """Measures for half a second; other work on the machine can only lower what is measured."""
        found = native.machine_limits(num_threads)
        return Limits(*(max(getattr(self, name), getattr(found, name)) for name in asdict(self)))


@dataclass(frozen=True)
class Work:
    """Of a step. Norms, activations, rope and sampling are left out: they are small beside these."""

    read_bytes: float = 0.0
    """Weights with their scales, once each, and the K/V that its rows see."""
    ops: dict[str, float] = field(default_factory=dict)
    """Multiplications and additions by the dtype that is multiplied: i8, bf16, f32."""

    def __add__(self, other: Work) -> Work:
        ops = {dtype: self.ops.get(dtype, 0.0) + other.ops.get(dtype, 0.0) for dtype in self.ops | other.ops}
        return Work(self.read_bytes + other.read_bytes, ops)

    def seconds(self, limits: Limits) -> float:
        """The bound: reading beside computing, each at its limit."""
        computing = sum(count / limits.ops(dtype) for dtype, count in self.ops.items())
        return max(self.read_bytes / limits.read_bytes, computing)


class StepWork:
    """What steps of one engine have to do, op by op."""

    def __init__(self, engine: Path) -> None:
        """Reads the plan of an engine folder. Raises EngineError."""
        file = EngineFile.open(engine / "rank0.engine")
        try:
            self.plan = Plan.from_bytes(bytes(file.bytes("plan")))
        except ValueError as error:
            raise EngineError(f"{file.path}: {error}") from None
        kv_dtype = str(self.plan.attributes["kv_cache_dtype"])
        heads, kv_heads, head_size = (
            int(self.plan.attributes[name]) for name in ("num_heads", "num_kv_heads", "head_size")
        )
        scale_bytes = 4 if kv_dtype in SCALED_KV else 0
        attention = _Attention(
            kv_bytes=2 * kv_heads * (head_size * KV_ELEMENT_BYTES[kv_dtype] + scale_bytes),
            pair_ops=4.0 * heads * head_size,
        )
        self._ops: dict[int, _Linear | _Attention] = {}
        """By its place in the plan; others count as no work."""
        for i, op in enumerate(self.plan.ops):
            if op.kernel == "linear":
                self._ops[i] = _Linear(
                    dtype=_dtype(file.sections[op.weights[0]].tag),
                    products=int(op.attributes["n"]) * int(op.attributes["k"]),
                    read_bytes=sum(file.sections[name].length for name in op.weights),
                    sampled=self.plan.buffers[op.outputs[0]].rows == "S",
                )
            elif op.kernel == "paged_attention":
                self._ops[i] = replace(attention, window=int(op.attributes["window"]))
        self.is_known = all(op.kernel != "moe" for op in self.plan.ops)
        """False for mixtures of experts: which of them a step reads depends on its tokens."""

    def of(self, sequences: Sequence[tuple[int, int]]) -> Work:
        """`sequences`: (rows, tokens before them), each of which wants the logits of its last row."""
        total = Work()
        for op in self._ops.values():
            total += op.work(sequences)
        return total

    def of_op(self, op: int, sequences: Sequence[tuple[int, int]]) -> Work | None:
        """Of the plan's op of this number alone; None: it is none that counts."""
        return self._ops[op].work(sequences) if op in self._ops else None


@dataclass(frozen=True)
class _Linear:
    dtype: str
    products: int
    """Of a row."""
    read_bytes: int
    sampled: bool
    """Runs only on rows whose logits are wanted."""

    def work(self, sequences: Sequence[tuple[int, int]]) -> Work:
        rows = len(sequences) if self.sampled else sum(n for n, _ in sequences)
        return Work(self.read_bytes, {self.dtype: 2.0 * self.products * rows})


@dataclass(frozen=True)
class _Attention:
    kv_bytes: int
    """Of K and V of a token in one layer."""
    pair_ops: float
    """Of a row and a position that it sees."""
    window: int = 0

    def work(self, sequences: Sequence[tuple[int, int]]) -> Work:
        spans = [_seen(n, before, self.window) for n, before in sequences]
        return Work(
            float(sum(seen for seen, _ in spans) * self.kv_bytes), {"f32": sum(p for _, p in spans) * self.pair_ops}
        )


def _dtype(tag: str) -> str:
    kind = tag.rpartition(".")[2]
    return "i8" if kind in ("s8", "u8") else kind


def _seen(rows: int, before: int, window: int) -> tuple[int, int]:
    """Positions that `rows` rows behind `before` tokens see, and pairs of a row and a position that it sees."""
    spans = [min(before + i + 1, window or before + i + 1) for i in range(rows)]
    return before + rows - max(0, before + 1 - spans[0]), sum(spans)
