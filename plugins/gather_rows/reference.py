"""`gather_rows`: the rows of a step whose logits are wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def gather_rows(x: npt.NDArray[Any], rows: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """x f32 [T, H], rows int [S], each 0 … T−1 → f32 [S, H]; S may be 0."""
    return np.asarray(x, np.float32)[np.asarray(rows, np.int64)]
