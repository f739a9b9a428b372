"""`softcap`: bounds values smoothly (Gemma 2, 2024)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def softcap(x: npt.NDArray[Any], cap: float) -> npt.NDArray[np.float32]:
    """x f32 of any shape, cap > 0 → cap · tanh(x / cap), f32, computed in f64: between −cap and cap. NaN stays NaN."""
    return np.asarray(cap * np.tanh(np.asarray(x, np.float64) / cap), np.float32)
