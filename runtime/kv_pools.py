"""How large the KV pools of an engine are."""

from __future__ import annotations

import math
import operator

from precast._native import runtime as native
from precast.errors import EngineError

KV_MEMORY_SHARE = 0.5
"""The largest share of the available memory that the KV pools take unless told."""

TYPICAL_WINDOWS = 4
"""The typical sequence that memory is divided for has this many tokens for each of the largest window."""


def num_pages(
    limits: native.ModelLimits, kv_cache_memory: int | None, available: int, prefix_pages: int = 0
) -> list[int]:
    """Pages of each layer group's KV pool: what the engine's limits can use beside `prefix_pages` of its prefixes,
    within `kv_cache_memory` bytes or a share of `available`.

    Sequences of max_seq_len can use as many pages of full attention as they are long, and for a window a few only; but
    cached prefixes are typically shorter. So pools with a window have at least what equally many *typical* sequences
    hold, TYPICAL_WINDOWS of the largest window long (or max_seq_len, if that is less), and memory that does not hold
    all that is divided so that every pool holds equally many typical sequences. Pages take memory when they are first
    written. Raises EngineError when there is no room for one page of every group.
    """
    groups = limits.groups
    budget = int(available * KV_MEMORY_SHARE) if kv_cache_memory is None else kv_cache_memory
    sizes = [max(1, group.page_bytes) for group in groups]
    budget -= prefix_pages * sum(sizes)
    window = max(group.window for group in groups)
    longest = pages_of_sequence(limits, limits.max_seq_len)
    typical = pages_of_sequence(limits, min(limits.max_seq_len, TYPICAL_WINDOWS * window or limits.max_seq_len))
    sequences = limits.max_batch_size * max(map(operator.truediv, longest, typical))  # typical ones, of all groups
    wanted = [math.ceil(sequences * pages) for pages in typical]
    if sum(map(operator.mul, wanted, sizes)) > budget:
        sequences = budget / sum(map(operator.mul, typical, sizes))
        wanted = [int(sequences * pages) for pages in typical]
    if min(wanted) < 1:
        raise EngineError(
            f"one KV page of every layer takes {sum(sizes)} bytes, and there are {max(budget, 0)} for the KV cache"
            f"{' beside the prefixes of the engine' if prefix_pages else ''}; give it more memory"
        )
    return [min(pages + prefix_pages, 2**31 - 1) for pages in wanted]


def pages_of_sequence(limits: native.ModelLimits, length: int) -> list[int]:
    """Most pages of each layer group that a sequence of `length` tokens holds at a time."""
    page = limits.page_tokens
    whole = -(-length // page)
    # The window before a page of rows, and these: neither need begin on a page border.
    return [min(whole, (g.window + 2 * page - 3) // page + 1) if g.window else whole for g in limits.groups]
