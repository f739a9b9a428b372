"""`activation` and `gated_activation`: the functions of feed-forward layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

KINDS = ("silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu2")
"""silu x·σ(x); gelu x·Φ(x) by the error function (Hendrycks and Gimpel, 2016); gelu_tanh its tanh form, and gelu_quick
its form x·σ(1.702·x); relu max(x, 0); relu2 its square (So et al., 2021)."""


def _sigmoid(x: F64) -> F64:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


def _normal_cdf(x: F64) -> F64:
    return np.asarray([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape)


def activation(kind: str, x: Array) -> F32:
    """x f32 of any shape → f32 of the same: the function `kind` of each element, computed in f64.

    NaN stays NaN. −∞ becomes NaN (−∞ · 0), but for relu and relu2, which make it 0. Raises ValueError for another kind.
    """
    wide = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        match kind:
            case "silu":
                y = wide * _sigmoid(wide)
            case "gelu":
                y = wide * _normal_cdf(wide)
            case "gelu_tanh":  # 0.5 · (1 + tanh(u)) is σ(2u)
                y = wide * _sigmoid(math.sqrt(8 / math.pi) * (wide + 0.044715 * wide**3))
            case "gelu_quick":
                y = wide * _sigmoid(1.702 * wide)
            case "relu":
                y = np.maximum(wide, 0)
            case "relu2":
                y = np.square(np.maximum(wide, 0))
            case _:
                raise ValueError(f"unknown activation {kind!r}; there are {', '.join(KINDS)}")
        return y.astype(np.float32)


def gated_activation(kind: str, gate: Array, up: Array) -> F32:
    """gate, up f32 of any one shape → activation(kind, gate) · up, f32."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return activation(kind, gate) * np.asarray(up, np.float32)
