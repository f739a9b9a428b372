"""`scale`: multiplies by a constant of the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def scale(x: npt.NDArray[Any], factor: float) -> npt.NDArray[np.float32]:
    """x f32 of any shape, factor rounded to f32 → x · factor, f32."""
    return np.asarray(x, np.float32) * np.float32(factor)
