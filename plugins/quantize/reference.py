"""`quantize`: activations to int8, per token or per token and group of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def quantize(x: npt.NDArray[Any], group: int) -> tuple[npt.NDArray[np.int8], F32]:
    """x f32 [..., K] → q int8 [..., K], scale f32 [..., G]; x ≈ q · scale of the column's group.

    `group`: columns that share a scale, or 0 for one scale per row; G = ⌈K / group⌉ (the last group may be shorter).
    scale = max|x| / 127 over the group and q = round-half-even(x / scale), clamped to −127 … 127, all in f32: −128
    never occurs. A group of zeros, or one so small that its scale underflows, has scale 0 and q 0. A group with a NaN
    or an infinity has scale NaN and q 0: whatever is computed from that row turns NaN, and no other row does.
    """
    x = np.asarray(x, np.float32)
    k = x.shape[-1]
    columns = group or k
    groups = -(-k // columns)
    padded = np.zeros((*x.shape[:-1], groups * columns), np.float32)
    padded[..., :k] = x
    padded = padded.reshape(*x.shape[:-1], groups, columns)
    largest = np.max(np.abs(padded), axis=-1)
    scale = np.where(np.isfinite(largest), largest / np.float32(127), np.float32(np.nan)).astype(np.float32)
    usable = scale > 0
    q = np.rint(np.where(usable[..., None], padded, 0) / np.where(usable, scale, 1)[..., None])
    q = np.clip(q, -127, 127).astype(np.int8)
    return q.reshape(*x.shape[:-1], -1)[..., :k], scale
