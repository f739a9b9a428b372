"""What an engine takes in memory, known before a weight is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from precast.builder.plan import Plan

PAGE_TOKENS = 32
"""Tokens of a KV page."""

PACK_COPIES = 3
"""Packing holds the largest weight about three times: gate and up interleaved, a padded block, the packed result."""

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


def estimate(plan: Plan, lengths: list[int]) -> MemoryNeed:
    """`lengths`: of the sections, in bytes. `kv_per_sequence`: KV pages of one sequence of max_seq_len tokens."""
    a = plan.attributes

    def integer(name: str) -> int:
        return int(a[name])

    slots: dict[int, int] = {}
    for buffer in plan.buffers[:-1]:  # the last one is the logits, which lie elsewhere
        width = buffer.columns * (1 if buffer.dtype == "i8" else 4)
        slots[buffer.slot] = max(slots.get(buffer.slot, 0), width * integer("max_num_tokens"))
    token = 2 * integer("num_layers") * integer("num_kv_heads") * integer("head_size")
    token *= 4 if a["kv_cache_dtype"] == "float32" else 2
    return MemoryNeed(
        weights=sum(lengths),
        activations=sum(slots.values()),
        logits=4 * integer("vocab_size") * integer("max_batch_size"),
        kv_per_sequence=token * -(-integer("max_seq_len") // PAGE_TOKENS) * PAGE_TOKENS,
        build=PACK_COPIES * max(lengths) + PACK_OVERHEAD,
    )
