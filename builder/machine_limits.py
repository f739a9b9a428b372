"""What a machine can do at most, and the least time that work takes there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from precast._native import runtime as native


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


def seen_positions(rows: int, before: int, window: int) -> tuple[int, int]:
    """Positions that `rows` rows behind `before` tokens see, and pairs of a row and a position that it sees. `window`:
    of the attention; 0: none."""
    spans = [min(before + i + 1, window or before + i + 1) for i in range(rows)]
    return before + rows - max(0, before + 1 - spans[0]), sum(spans)


def attention_dtype(isa: str, kv_cache_dtype: str) -> str:
    """In which attention multiplies on an ISA level: f32 or bf16 (as fast as the 16-bit integers of int8 K/V)."""
    return "bf16" if isa == "avx512" and kv_cache_dtype != "float32" else "f32"
