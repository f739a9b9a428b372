"""`kv_append`: keys and values of new tokens into the KV pages of one layer and one KV head."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_TOKENS = 32
"""Tokens of a KV page."""

Array = npt.NDArray[Any]


def empty_pages(num_pages: int, head_size: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Zeroed pages: keys [num_pages, head_size, 32], values [num_pages, 32, head_size].

    Tokens run fastest in the keys, so that scores of neighbouring tokens are neighbouring lanes; head columns run
    fastest in the values, for the same reason on the way back.
    """
    keys = np.zeros((num_pages, head_size, PAGE_TOKENS), dtype)
    values = np.zeros((num_pages, PAGE_TOKENS, head_size), dtype)
    return keys, values


def kv_append(key_pages: Array, value_pages: Array, block_table: Array, position: int, k: Array, v: Array) -> None:
    """Writes k, v f32 [T, head_size] of the absolute positions `position` … `position` + T − 1, in place.

    `block_table` int [pages of the sequence]: page j holds positions 32j … 32j + 31. Values are rounded to the pages'
    dtype (bfloat16: to nearest even). Slots outside the written positions are left as they are.
    """
    for i, (key, value) in enumerate(zip(k, v, strict=True)):
        page, slot = divmod(position + i, PAGE_TOKENS)
        key_pages[block_table[page], :, slot] = key.astype(key_pages.dtype)
        value_pages[block_table[page], slot] = value.astype(value_pages.dtype)
