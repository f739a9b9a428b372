"""What an engine takes in memory, known before a weight is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from precast.builder.plan import Plan, PlanOp
from precast.builder.targets.cpu.sections import Section
from precast.plugins.kv_append.reference import PAGE_TOKENS, kv_bytes
from precast.plugins.linear.layout import LAYOUTS

PACK_COPIES = 2
"""Packing holds a weight about twice: gate and up interleaved, and the packed result."""

PACK_OVERHEAD = 100 << 20
"""The interpreter, numpy and the tokenizer."""


@dataclass(frozen=True)
class MemoryNeed:
    """Estimates in bytes. `weights` are mapped: they count as file cache, and processes share them."""

    weights: int
    activations: int
    logits: int
    kv_per_sequence: int
    build: int

    def to_json(self) -> dict[str, int]:
        """For config.json."""
        return {f"{name}_bytes": size for name, size in asdict(self).items()}


def _moe_row(op: PlanOp, hidden: int) -> int:
    """Bytes that a mixture of experts takes for each token: what its experts read, hold and give."""
    if op.kernel != "moe":
        return 0
    size, shared, top_k = (int(op.attributes[n]) for n in ("intermediate_size", "shared_intermediate_size", "top_k"))
    return 4 * (top_k * (2 * hidden + size) + hidden + shared)


def _kv_pages(plan: Plan) -> int:
    """Pages of one layer, summed over the layers, that a sequence of max_seq_len tokens holds at a time.

    Where attention has a window, these are the pages of the window and of a page of rows behind it.
    """
    longest = int(plan.attributes["max_seq_len"])
    whole = -(-longest // PAGE_TOKENS)
    pages = dict.fromkeys(range(int(plan.attributes["num_layers"])), whole)
    for op in plan.ops:
        if op.kernel == "paged_attention" and 0 < (window := int(op.attributes["window"])) < longest:
            pages[int(op.attributes["layer"])] = min(whole, (window + 2 * PAGE_TOKENS - 3) // PAGE_TOKENS + 1)
    return sum(pages.values())


def estimate(plan: Plan, sections: Iterable[Section]) -> MemoryNeed:
    """`kv_per_sequence`: KV pages of one sequence of max_seq_len tokens. What is not packed is written from its map."""
    listed = list(sections)
    packed = [section.length // section.parts for section in listed if section.tag in LAYOUTS]
    a = plan.attributes

    def integer(name: str) -> int:
        return int(a[name])

    slots: dict[int, int] = {}
    logits = plan.buffers[-1]  # lie elsewhere, and so does what is computed in their place
    for buffer in plan.buffers:
        if (buffer.slot, buffer.rows, buffer.columns) == (logits.slot, logits.rows, logits.columns):
            continue
        width = buffer.columns * (1 if buffer.dtype == "i8" else 4)
        slots[buffer.slot] = max(slots.get(buffer.slot, 0), width * integer("max_num_tokens"))
    most_moe = max((_moe_row(op, integer("hidden_size")) for op in plan.ops), default=0)
    token = integer("num_kv_heads") * kv_bytes(integer("head_size"), str(a["kv_cache_dtype"]))  # of one layer
    return MemoryNeed(
        weights=sum(section.length for section in listed),
        activations=sum(slots.values()) + integer("max_num_tokens") * most_moe,
        logits=4 * integer("vocab_size") * integer("max_batch_size"),
        kv_per_sequence=token * PAGE_TOKENS * _kv_pages(plan),
        build=PACK_COPIES * max(packed) + PACK_OVERHEAD,
    )
