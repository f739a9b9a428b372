"""`paged_attention`: causal softmax attention over a sequence's cache, with grouped query heads."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def paged_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    positions: Array,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    slopes: Array | None = None,
) -> npt.NDArray[np.float32]:
    """q f32 [T, Hq, D], k_cache and v_cache [L, Hkv, D] of one sequence, positions int [T] → f32 [T, Hq, D].

    Row t stands at p = positions[t] < L and sees the cache's positions max(0, p − window + 1) … p, itself included;
    `window` 0: from 0 on. What it does not see does not matter, NaN included. Query head h reads KV head
    h // (Hq / Hkv). s = scale · q·k; then, with softcap > 0, s ← softcap · tanh(s / softcap); then, with `slopes`
    f32 [Hq] (ALiBi: Press et al., 2021), s at position j ← s + slope · (j − p); softmax(s), all in f64.
    Level avx512 multiplies 16-bit numbers, unless the cache is float32: q as `q_as_multiplied` has it, and exp(s − max)
    rounded to bf16, or for an int8 cache (times the value's scale) to 1/32,767 of its largest in 256 positions.
    Pages do not exist here: they hold the same cache, cut into blocks (plugins/kv_append/reference.py).
    """
    kv_heads = k_cache.shape[1]
    t, heads, head_size = q.shape
    grouped = np.asarray(q, np.float64).reshape(t, kv_heads, heads // kv_heads, head_size)
    out = np.empty_like(grouped)
    for row, position in enumerate(np.asarray(positions).tolist()):
        seen = slice(max(0, position - window + 1) if window else 0, position + 1)
        k, v = k_cache[seen].astype(np.float64), v_cache[seen].astype(np.float64)
        scores = np.einsum("hgd,lhd->hgl", grouped[row], k) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if slopes is not None:
            distances = np.arange(seen.start, seen.stop) - position
            scores = scores + np.asarray(slopes, np.float64).reshape(kv_heads, -1, 1) * distances
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[row] = np.einsum("hgl,lhd->hgd", p / p.sum(axis=-1, keepdims=True), v)
    return out.reshape(t, heads, head_size).astype(np.float32)


def q_as_multiplied(q: Array, kv_cache_dtype: str, level: str) -> npt.NDArray[np.float32]:
    """q f32 [..., D], not all zero along D → as an ISA level multiplies it: avx512 rounds it to bf16, for an int8 cache
    to multiples of its largest magnitude / limit, where limit is 32,767, or less: sums of D products with 127 fit 32
    bits.
    """
    q = np.asarray(q, np.float32)
    if level != "avx512" or kv_cache_dtype == "float32":
        return q
    if kv_cache_dtype != "int8":
        return q.astype(ml_dtypes.bfloat16).astype(np.float32)
    limit = np.float32(min(32767, 0x7FFFFFFF // (127 * q.shape[-1])))
    largest = np.abs(q).max(axis=-1, keepdims=True)
    multiples: npt.NDArray[np.float32] = (np.rint(q * (limit / largest)) * (largest / limit)).astype(np.float32)
    return multiples
