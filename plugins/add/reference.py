"""`add`: the sum of two values, as of a residual stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def add(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """x, y f32 of one shape → x + y, f32."""
    return np.asarray(x, np.float32) + np.asarray(y, np.float32)
