"""Pieces of source tensors, of which a checkpoint's tensors are joined."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precast.quantize.families.family import Part, Selection


@dataclass(frozen=True)
class Piece:
    """A source tensor, or some of its rows, that become rows of a checkpoint tensor."""

    tensor: str
    part: Part
    selection: Selection | None = None
    """Which of the source's rows, in order; None: all."""

    @property
    def rows(self) -> npt.NDArray[np.int64] | None:
        return None if self.selection is None else self.selection.rows


Pieces = dict[str, tuple[Piece, ...]]


def source_shape(piece: Piece, shape: tuple[int, ...]) -> tuple[int, ...]:
    """What a tensor of this shape is before rows are picked: flat, and [out, in]."""
    if piece.part.flat:
        return (math.prod(shape),)
    return shape[::-1] if piece.part.transposed else shape
