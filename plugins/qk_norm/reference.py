"""`clip` and `qk_norm`: what happens to q, k and v between their projection and the rope."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precast.plugins.layer_norm.reference import layer_norm
from precast.plugins.rms_norm.reference import rms_norm

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

KINDS = ("rms_head", "rms_full", "layer_head")
"""rms_head: RMS norm of each head, one gain [D] for all heads. rms_full: RMS norm of all heads together, gain
[heads · D]. layer_head: layer norm of each head without a bias, gain [heads · D]."""


def clip(x: Array, limit: float) -> F32:
    """x f32 of any shape → each element within −limit … limit, f32 of the same shape. NaN stays NaN."""
    return np.asarray(np.clip(np.asarray(x, np.float32), np.float32(-limit), np.float32(limit)), np.float32)


def qk_norm(kind: str, x: Array, gain: Array, epsilon: float) -> F32:
    """x f32 [T, heads, D] (all q heads, or all k heads), gain f32 as KINDS says → f32 [T, heads, D].

    Raises ValueError for another kind.
    """
    t, heads, head_size = x.shape
    if kind == "rms_head":
        return rms_norm(x, gain, epsilon)
    if kind == "rms_full":
        return rms_norm(x.reshape(t, heads * head_size), gain, epsilon).reshape(x.shape)
    if kind == "layer_head":
        return np.asarray(layer_norm(x, None, None, epsilon) * np.reshape(gain, (heads, head_size)), np.float32)
    raise ValueError(f"unknown qk_norm {kind!r}; there are {', '.join(KINDS)}")
