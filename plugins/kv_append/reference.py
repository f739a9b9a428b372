"""`kv_append`: keys and values of new tokens into the KV pages of one layer and one KV head."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

PAGE_TOKENS = 32
"""Tokens of a KV page."""

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

KV_DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""What `kv_cache_dtype` may be, and the dtype of a page's elements."""

LARGEST = {"int8": 127.0, "fp8": 448.0}
"""Of the scaled dtypes: the largest element. Their keys and values have a scale per token and KV head."""


def kv_bytes(head_size: int, kv_cache_dtype: str) -> int:
    """Bytes of the key and the value of one token, layer and KV head."""
    return 2 * (head_size * int(KV_DTYPES[kv_cache_dtype].itemsize) + (4 if kv_cache_dtype in LARGEST else 0))


def kv_quantize(x: Array, kv_cache_dtype: str) -> tuple[Array, F32]:
    """x f32 [..., D] → elements [..., D] of the dtype, scale f32 [...]; x ≈ element · scale.

    float32, bfloat16: rounded to nearest even; the scale is 1. int8, fp8 (E4M3): scale = max|x| / largest element over
    D, element = x / scale, limited to the largest element and rounded to nearest even, all in f32. Zeros, or a scale
    that underflows: scale 0, elements 0. A NaN or an infinity in x: scale NaN, elements 0, so that whatever reads this
    key or value turns NaN, and nothing else does.
    """
    x = np.asarray(x, np.float32)
    dtype = KV_DTYPES[kv_cache_dtype]
    if kv_cache_dtype not in LARGEST:
        return x.astype(dtype), np.ones(x.shape[:-1], np.float32)
    most = np.float32(LARGEST[kv_cache_dtype])
    largest = np.abs(x).max(axis=-1)
    scale = np.where(np.isfinite(largest), largest / most, np.float32(np.nan)).astype(np.float32)
    usable = (scale > 0)[..., None]
    elements = np.clip(np.where(usable, x, 0) / np.where(usable, scale[..., None], 1), -most, most)
    return (np.rint(elements) if dtype == np.int8 else elements).astype(dtype), scale


def kv_round(x: Array, kv_cache_dtype: str) -> F32:
    """x f32 [..., D] as the cache gives it back."""
    elements, scale = kv_quantize(x, kv_cache_dtype)
    rounded: F32 = elements.astype(np.float32) * scale[..., None]
    return rounded


def empty_pages(num_pages: int, head_size: int, kv_cache_dtype: str) -> tuple[Array, Array, F32]:
    """Zeroed pages: keys [num_pages, D, 32], values [num_pages, 32, D], scales of both f32 [num_pages, 2, 32].

    Tokens run fastest in the keys, so that scores of neighbouring tokens are neighbouring lanes; head columns run
    fastest in the values, for the same reason on the way back. Only the scaled dtypes keep the scales in memory.
    """
    dtype = KV_DTYPES[kv_cache_dtype]
    keys = np.zeros((num_pages, head_size, PAGE_TOKENS), dtype)
    values = np.zeros((num_pages, PAGE_TOKENS, head_size), dtype)
    return keys, values, np.zeros((num_pages, 2, PAGE_TOKENS), np.float32)


def kv_append(
    pages: tuple[Array, Array, F32], block_table: Array, position: int, k: Array, v: Array, kv_cache_dtype: str
) -> None:
    """Writes k, v f32 [T, D] of the absolute positions `position` … `position` + T − 1 to `empty_pages`, in place.

    `block_table` int [pages of the sequence]: page j holds positions 32j … 32j + 31. Rounding: `kv_quantize`. Slots
    outside the written positions are left as they are.
    """
    keys, values, scales = pages
    for i in range(len(k)):
        page, slot = divmod(position + i, PAGE_TOKENS)
        at = block_table[page]
        keys[at, :, slot], scales[at, 0, slot] = kv_quantize(k[i], kv_cache_dtype)
        values[at, slot], scales[at, 1, slot] = kv_quantize(v[i], kv_cache_dtype)
