"""`embed`: rows of a table, by token id, and rows of a second one by position where positions are learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def embed(
    tokens: npt.ArrayLike,
    table: Array,
    scale: float = 1.0,
    positions: npt.ArrayLike | None = None,
    position_table: Array | None = None,
) -> npt.NDArray[np.float32]:
    """tokens int [T], table f32, bf16 or int8 [V, H] → f32 [T, H]: the token's row times `scale` (rounded to f32).

    With `position_table` f32 or bf16 [P, H], the row of positions int [T] is added after that. Raises IndexError for an
    id outside 0 … V−1 or a position outside 0 … P−1.
    """
    ids = np.asarray(tokens, np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= len(table)):
        raise IndexError(f"a token id lies outside 0 … {len(table) - 1}")
    x = table[ids].astype(np.float32) * np.float32(scale)
    if position_table is not None:
        at = np.asarray(positions, np.int64)
        if at.size and (at.min() < 0 or at.max() >= len(position_table)):
            raise IndexError(f"a position lies outside 0 … {len(position_table) - 1}")
        x = x + position_table[at].astype(np.float32)
    return np.asarray(x, np.float32)
