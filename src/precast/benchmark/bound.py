"""The least time that a step of an engine can take on a machine: the longer of reading what it must read and of
computing what it must compute, at the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

    def or_higher(self, num_threads: int) -> Limits:
        """Measures for half a second; other work on the machine can only lower what is measured."""
        found = native.machine_limits(num_threads)
        return Limits(*(max(getattr(self, name), getattr(found, name)) for name in asdict(self)))


@dataclass(frozen=True)
class Work:
    """Of a step. Norms, activations, rope and sampling are left out: they are small beside these."""

    read_bytes: float
    """Weights with their scales, once each, and the K/V that its rows see."""
    ops: dict[str, float]
    """Multiplications and additions by the dtype that is multiplied: i8, bf16, f32."""

    def seconds(self, limits: Limits) -> float:
        """The bound: reading beside computing, each at its limit."""
        computing = self.ops["i8"] / limits.i8_ops
        computing += self.ops["bf16"] / limits.bf16_ops + self.ops["f32"] / limits.f32_ops
        return max(self.read_bytes / limits.read_bytes, computing)


class StepWork:
    """What steps of one engine have to do."""

    def __init__(self, engine: Path) -> None:
        """Reads the plan of an engine folder. Raises EngineError."""
        file = EngineFile.open(engine / "rank0.engine")
        try:
            plan = Plan.from_bytes(bytes(file.bytes("plan")))
        except ValueError as error:
            raise EngineError(f"{file.path}: {error}") from None
        self._kv_dtype = str(plan.attributes["kv_cache_dtype"])
        self._heads, self._kv_heads, self._head_size = (
            int(plan.attributes[name]) for name in ("num_heads", "num_kv_heads", "head_size")
        )
        self._windows = [int(op.attributes["window"]) for op in plan.ops if op.kernel == "paged_attention"]
        self._linears = [
            _Linear(
                dtype=_dtype(file.sections[op.weights[0]].tag),
                products=int(op.attributes["n"]) * int(op.attributes["k"]),
                read_bytes=sum(file.sections[name].length for name in op.weights),
                sampled=plan.buffers[op.outputs[0]].rows == "S",
            )
            for op in plan.ops
            if op.kernel == "linear"
        ]
        self.is_known = all(op.kernel != "moe" for op in plan.ops)
        """False for mixtures of experts: which of them a step reads depends on its tokens."""

    def of(self, sequences: Sequence[tuple[int, int]]) -> Work:
        """`sequences`: (rows, tokens before them), each of which wants the logits of its last row."""
        rows = sum(n for n, _ in sequences)
        ops = {"i8": 0.0, "bf16": 0.0, "f32": 0.0}
        for linear in self._linears:
            ops[linear.dtype] += 2.0 * linear.products * (len(sequences) if linear.sampled else rows)
        element = KV_ELEMENT_BYTES[self._kv_dtype]
        scale = 4 if self._kv_dtype in SCALED_KV else 0
        token_bytes = 2 * self._kv_heads * (self._head_size * element + scale)
        read = float(sum(linear.read_bytes for linear in self._linears))
        for window in self._windows:
            for n, before in sequences:
                seen, pairs = _seen(n, before, window)
                read += seen * token_bytes
                ops["f32"] += 4.0 * pairs * self._heads * self._head_size
        return Work(read, ops)


@dataclass(frozen=True)
class _Linear:
    dtype: str
    products: int
    """Of a row."""
    read_bytes: int
    sampled: bool
    """Runs only on rows whose logits are wanted."""


def _dtype(tag: str) -> str:
    kind = tag.rpartition(".")[2]
    return "i8" if kind in ("s8", "u8") else kind


def _seen(rows: int, before: int, window: int) -> tuple[int, int]:
    """Positions that `rows` rows behind `before` tokens see, and pairs of a row and a position that it sees."""
    spans = [min(before + i + 1, window or before + i + 1) for i in range(rows)]
    return before + rows - max(0, before + 1 - spans[0]), sum(spans)
