"""Rows of fused and interleaved source weights, in the order of the checkpoint.

The checkpoint keeps all q heads, all k heads, all v heads, and rotates the halves of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from precast.checkpoint import ModelConfig
from precast.quantize.families.family import Part, Selection

Rows = npt.NDArray[np.int64]


def _heads(config: ModelConfig, which: str) -> int:
    return config.num_attention_heads if which == "q" else config.num_key_value_heads


def concatenated(which: str) -> Callable[[ModelConfig], Selection]:
    """q, k or v of a weight that holds all q, then all k, then all v."""

    def select(config: ModelConfig) -> Selection:
        sizes = [_heads(config, name) * config.head_size for name in "qkv"]
        place = "qkv".index(which)
        begin = sum(sizes[:place])
        return Selection(sum(sizes), np.arange(begin, begin + sizes[place]))

    return select


def grouped(which: str) -> Callable[[ModelConfig], Selection]:
    """q, k or v of a weight that holds, for each key/value head, its q heads, the k head and the v head."""

    def select(config: ModelConfig) -> Selection:
        per_group = config.num_attention_heads // config.num_key_value_heads
        shape = (config.num_key_value_heads, per_group + 2, config.head_size)
        rows = np.arange(config.qkv_size).reshape(shape)
        part = {"q": rows[:, :-2], "k": rows[:, -2], "v": rows[:, -1]}[which]
        return Selection(config.qkv_size, part.reshape(-1))

    return select


def interleaved(which: str) -> Callable[[ModelConfig], Selection]:
    """q or k whose rope rotates neighbours: the even places of what rotates first, then the odd ones."""

    def select(config: ModelConfig) -> Selection:
        heads, rotary = _heads(config, which), config.rotary_dim
        head = np.r_[np.arange(0, rotary, 2), np.arange(1, rotary, 2), np.arange(rotary, config.head_size)]
        rows = np.arange(heads)[:, None] * config.head_size + head
        return Selection(heads * config.head_size, rows.reshape(-1))

    return select


def half(place: int) -> Callable[[ModelConfig], Selection]:
    """The first or second half of a weight that holds the gate and the up projection."""

    def select(config: ModelConfig) -> Selection:
        n = config.intermediate_size
        return Selection(2 * n, np.arange(place * n, (place + 1) * n))

    return select


def behind(skipped: int) -> Callable[[ModelConfig], Selection]:
    """Positions of a table whose first rows are never used."""

    def select(config: ModelConfig) -> Selection:
        n = config.max_position_embeddings
        return Selection(skipped + n, np.arange(skipped, skipped + n))

    return select


def fused(
    module: str, layout: Callable[[str], Callable[[ModelConfig], Selection]], transposed: bool = False
) -> tuple[Part, ...]:
    """q, k and v as parts of one source module."""
    return tuple(Part(module, layout(which), transposed) for which in "qkv")
