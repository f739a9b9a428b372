"""The shapes that ops of a plan have: what the speed of a linear or an attention depends on, and their least work."""

from __future__ import annotations

from dataclasses import dataclass

from precast.builder.machine_limits import Work, attention_dtype, seen_positions
from precast.builder.plan import Attribute, Plan, PlanOp
from precast.builder.targets.cpu.sections import Section
from precast.plugins.kv_append.reference import kv_bytes
from precast.plugins.linear.layout import LAYOUTS, padded_shape

BATCH = 16

ROWS = (1, BATCH, 64)
"""Row counts of the steps that shapes are timed with: decode of one sequence, of a batch, and prefill."""

CONTEXT_TOKENS = 1024
"""What attention is timed at: tokens that a sequence has with this step's, unless the engine allows fewer."""


@dataclass(frozen=True)
class LinearShape:
    """`n` and `k` as in the plan; `epilogue`: with its activation; `sampled`: it runs on S rows, at most the batch."""

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

    @property
    def weight_bytes(self) -> int:
        """Of the packed weight."""
        n, k = padded_shape(self.tag, self.n, self.k, self.group)
        return n * k * LAYOUTS[self.tag].packed.itemsize

    def work(self, rows: int) -> Work:
        """Of a step with so many rows."""
        quantized = LAYOUTS[self.tag].inner == 4
        dtype = "i8" if quantized else self.tag.rpartition(".")[2]
        return Work(self.weight_bytes + (4.0 * self.n if quantized else 0.0), {dtype: 2.0 * self.n * self.k * rows})

    def rows(self, attributes: dict[str, Attribute]) -> list[int]:
        """Row counts that it is timed with, rising, as far as an engine with these plan attributes goes."""
        most = int(attributes["max_batch_size" if self.sampled else "max_num_tokens"])
        return sorted({min(count, most) for count in ROWS})


@dataclass(frozen=True)
class AttentionShape:
    """`attributes` of the plan's op but its layer; `context`: tokens of a sequence that it is timed with."""

    kv_cache_dtype: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    context: int
    window: int
    softcap: bool
    alibi: bool
    dtype: str
    """That is multiplied (attention_dtype)."""

    def key(self) -> str:
        """As a linear's."""
        window = f" window {self.window}" if self.window else ""
        more = window + " softcap" * self.softcap + " alibi" * self.alibi
        heads = f"{self.num_heads}/{self.num_kv_heads}x{self.head_size}"
        return f"attention {self.kv_cache_dtype} {heads} context {self.context}{more}"

    @property
    def sequence_bytes(self) -> int:
        """K and V of one layer and a sequence of `context` tokens."""
        return self.context * self.num_kv_heads * kv_bytes(self.head_size, self.kv_cache_dtype)

    def rows(self, attributes: dict[str, Attribute]) -> list[int]:
        """As a linear's; the most belong to one prompt."""
        batch = min(BATCH, int(attributes["max_batch_size"]))
        prompt = min(ROWS[-1], self.context, int(attributes["max_num_tokens"]))
        return sorted({1, batch} | ({prompt} if prompt > BATCH else set()))

    def sequences(self, rows: int) -> list[tuple[int, int]]:
        """(rows, tokens before them) of the step that is timed: few rows are one of each of so many sequences that
        decode, more are the end of one prompt."""
        if rows <= BATCH:
            return [(1, self.context - 1)] * rows
        return [(rows, self.context - rows)]

    def work(self, rows: int) -> Work:
        """Of that step."""
        seen = [seen_positions(n, before, self.window) for n, before in self.sequences(rows)]
        token = self.num_kv_heads * kv_bytes(self.head_size, self.kv_cache_dtype)
        products = sum(pairs for _, pairs in seen) * self.num_heads * self.head_size
        return Work(float(sum(positions for positions, _ in seen) * token), {self.dtype: 4.0 * products})


Shape = LinearShape | AttentionShape


def shape_of(plan: Plan, op: PlanOp, sections: dict[str, Section]) -> Shape | None:
    """Of an op of the plan, whose weights are `sections`; None: it is of another kind."""
    if op.kernel == "linear":
        return _linear_shape(plan, op, sections)
    return _attention_shape(plan, op) if op.kernel == "paged_attention" else None


def _linear_shape(plan: Plan, op: PlanOp, sections: dict[str, Section]) -> LinearShape:
    read, written = plan.buffers[op.inputs[0]], plan.buffers[op.outputs[0]]
    n, k = int(op.attributes["n"]), int(op.attributes["k"])
    epilogue = " ".join(str(op.attributes[name]) for name in ("epilogue", "activation") if name in op.attributes)
    return LinearShape(sections[op.weights[0]].tag, read.group, n, k, epilogue, written.rows == "S")


def _attention_shape(plan: Plan, op: PlanOp) -> AttentionShape:
    a = plan.attributes
    heads, kv_heads, head_size, longest = (
        int(a[name]) for name in ("num_heads", "num_kv_heads", "head_size", "max_seq_len")
    )
    context = min(CONTEXT_TOKENS, longest)
    window = int(op.attributes["window"])
    return AttentionShape(
        kv_cache_dtype=str(a["kv_cache_dtype"]),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        context=context,
        window=window if window < context else 0,
        softcap=float(op.attributes["softcap"]) > 0,
        alibi=bool(op.attributes["alibi"]),
        dtype=attention_dtype(str(a["isa"]), str(a["kv_cache_dtype"])),
    )
