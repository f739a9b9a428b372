"""`paged_attention`: causal softmax attention over a sequence's cache, with grouped query heads."""

from __future__ import annotations

from typing import Any

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
