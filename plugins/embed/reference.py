"""`embed`: rows of a table, by token id."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def embed(tokens: npt.ArrayLike, table: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """tokens int [T], table f32, bf16 or int8 [V, H] → f32 [T, H]. Raises IndexError for an id outside 0 … V−1."""
    ids = np.asarray(tokens, np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= len(table)):
        raise IndexError(f"a token id lies outside 0 … {len(table) - 1}")
    return table[ids].astype(np.float32)
