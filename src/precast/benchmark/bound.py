"""The least time that a step of an engine can take on a machine: the longer of reading what it must read and of
computing what it must compute, at the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from precast.builder.engine_file import EngineFile
from precast.builder.machine_limits import Work, attention_dtype, seen_positions
from precast.builder.plan import Plan
from precast.errors import EngineError

KV_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1}
SCALED_KV = ("int8", "fp8")
"""With an f32 scale for each token and head of K and of V."""


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
            dtype=attention_dtype(str(self.plan.attributes["isa"]), kv_dtype),
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
    dtype: str
    """That is multiplied."""
    window: int = 0

    def work(self, sequences: Sequence[tuple[int, int]]) -> Work:
        spans = [seen_positions(n, before, self.window) for n, before in sequences]
        return Work(
            float(sum(seen for seen, _ in spans) * self.kv_bytes),
            {self.dtype: sum(p for _, p in spans) * self.pair_ops},
        )


def _dtype(tag: str) -> str:
    kind = tag.rpartition(".")[2]
    return "i8" if kind in ("s8", "u8") else kind
