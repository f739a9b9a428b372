"""`rope`: rotary position embedding (Su et al., 2021), in the half-split form of Hugging Face checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


def rope_cos_sin(positions: Array, inverse_frequencies: Array, attention_factor: float = 1.0) -> tuple[F32, F32]:
    """positions int [T], inverse_frequencies f32 [R/2] → cos, sin f32 [T, R/2], both times `attention_factor`.

    The angle is position · inverse frequency, rounded to f32; its cosine and sine are computed in f64 and rounded once.
    """
    angles = np.asarray(positions, np.float32)[:, None] * np.asarray(inverse_frequencies, np.float32)
    wide = angles.astype(np.float64)
    return (
        (np.cos(wide) * attention_factor).astype(np.float32),
        (np.sin(wide) * attention_factor).astype(np.float32),
    )


def rope(x: Array, cos: Array, sin: Array, rotary_dim: int) -> F32:
    """x f32 [T, heads, D], cos and sin f32 [T, rotary_dim/2] → f32 [T, heads, D].

    Rotates the pairs (i, i + rotary_dim/2), i < rotary_dim/2, of each head: (a, b) → (a·cos − b·sin, b·cos + a·sin).
    Columns from rotary_dim on (even, at most D) pass through.
    """
    x = np.asarray(x, np.float32)
    half = rotary_dim // 2
    a, b = x[..., :half], x[..., half:rotary_dim]
    c, s = np.asarray(cos, np.float32)[:, None], np.asarray(sin, np.float32)[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., rotary_dim:]], axis=-1)
