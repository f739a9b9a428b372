"""`layer_norm`: layer normalization (Ba, Kiros and Hinton, 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def layer_norm(x: Array, gain: Array | None, bias: Array | None, epsilon: float) -> npt.NDArray[np.float32]:
    """x f32 [..., N], gain and bias f32 [N] or None (1 and 0) → (x − mean) / √(variance + epsilon) · gain + bias.

    f32 [..., N]; the variance is that of the row itself (divided by N). Computed in f64; a constant row becomes the
    bias. A NaN or infinity makes its own row NaN. Kernels sum in f32, where rows beyond about 1e19 overflow.
    """
    wide = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        centered = wide - wide.mean(axis=-1, keepdims=True)
        y = centered / np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + epsilon)
    if gain is not None:
        y = y * np.asarray(gain, np.float64)
    if bias is not None:
        y = y + np.asarray(bias, np.float64)
    return np.asarray(y, np.float32)
