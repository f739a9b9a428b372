"""A checkpoint's tensors as they are stored: cast, or quantized with the noise of it measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precast.checkpoint import ModelConfig, tensor_shapes
from precast.quantize.int8 import quantize_weight, signal_and_noise
from precast.quantize.rows import BLOCK_ELEMENTS, Rows

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


class Weights:
    """Makes the tensors of `tensor_shapes(config)` from f32 rows."""

    def __init__(self, rows: Rows, config: ModelConfig) -> None:
        self.shapes = tensor_shapes(config)
        self.powers: dict[str, tuple[float, float]] = {}
        """Quantized module → Σ w² and Σ (w − ŵ)² over its weight."""
        self._rows = rows
        self._scales: dict[str, F32] = {}

    def blocks(self, name: str) -> Iterator[Array]:
        """The tensor in blocks of rows, in order; a quantized weight must be taken before its scale.

        Raises SourceError when the source holds NaN or infinity.
        """
        module, _, suffix = name.rpartition(".")
        if suffix == "per_channel_scale":
            yield self._scales.pop(module)
        elif self.shapes[name][0] == "I8":
            yield from self._quantized(module, name)
        else:
            dtype = np.dtype(np.float32 if self.shapes[name][0] == "F32" else ml_dtypes.bfloat16)
            for block in self._rows.blocks(name):
                yield block.astype(dtype)

    def _quantized(self, module: str, name: str) -> Iterator[Array]:
        scales: list[F32] = []
        signal = noise = 0.0
        for rows in self._rows.blocks(name):
            step = max(1, BLOCK_ELEMENTS // rows.shape[1])
            for begin in range(0, len(rows), step):
                block = rows[begin : begin + step]
                q, scale = quantize_weight(block)
                powers = signal_and_noise(block, q, scale)
                signal, noise = signal + powers[0], noise + powers[1]
                scales.append(scale)
                yield q
        self._scales[module] = np.concatenate(scales)
        self.powers[module] = signal, noise
