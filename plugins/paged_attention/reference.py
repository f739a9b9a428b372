"""`paged_attention`: causal softmax attention over a sequence's cache, with grouped query heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def paged_attention(
    q: Array, k_cache: Array, v_cache: Array, positions: Array, scale: float
) -> npt.NDArray[np.float32]:
    """q f32 [T, Hq, D], k_cache and v_cache [L, Hkv, D] of one sequence, positions int [T] → f32 [T, Hq, D].

    Row t stands at positions[t] < L and sees the cache's positions 0 … positions[t], itself included; what lies behind
    does not matter, NaN included. Query head h reads KV head h // (Hq / Hkv). softmax(scale · q·k) is computed in f64.
    Pages do not exist here: they hold the same cache, cut into blocks (plugins/kv_append/reference.py).
    """
    kv_heads = k_cache.shape[1]
    t, heads, head_size = q.shape
    grouped = np.asarray(q, np.float64).reshape(t, kv_heads, heads // kv_heads, head_size)
    out = np.empty_like(grouped)
    for row, position in enumerate(np.asarray(positions).tolist()):
        k = k_cache[: position + 1].astype(np.float64)
        v = v_cache[: position + 1].astype(np.float64)
        scores = np.einsum("hgd,lhd->hgl", grouped[row], k) * scale
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[row] = np.einsum("hgl,lhd->hgd", p / p.sum(axis=-1, keepdims=True), v)
    return out.reshape(t, heads, head_size).astype(np.float32)
