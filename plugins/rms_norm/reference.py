"""`rms_norm`: root-mean-square normalization (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def rms_norm(x: npt.NDArray[Any], gain: npt.NDArray[Any] | None, epsilon: float) -> npt.NDArray[np.float32]:
    """x f32 [..., N], gain f32 [N] or None (1) → x · 1/√(mean(x²) + epsilon) · gain, f32 [..., N].

    A row of zeros stays zero; a NaN or infinity makes its own row NaN. The mean is taken in f64, and so holds for any
    finite row; kernels sum in f32, where rows beyond about 1e19 overflow.
    """
    x = np.asarray(x, np.float32)
    with np.errstate(invalid="ignore"):
        mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
        y = x / np.sqrt(mean + epsilon)
        y = y if gain is None else y * np.asarray(gain, np.float32)
    return np.asarray(y, np.float32)
