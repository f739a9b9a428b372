"""Whole linears through the native kernels, tile by tile, as the tests of linear, quantize and embed want them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precast._native import kernels
from precast.plugins.linear.layout import INT8_TAG, pack

Array = npt.NDArray[Any]
BF16 = ml_dtypes.bfloat16


def quantize_tile(level: str, x: Array, k: int, group: int) -> tuple[Array, Array, Array]:
    """x f32 [rows][cols] → q [k/4][rows][4], scale and sum [groups][rows]."""
    rows = len(x)
    groups = k // group if group else 1
    q = np.full((k // 4, rows, 4), 99, np.int8)
    scale = np.full((groups, rows), 99, np.float32)
    sums = np.full((groups, rows), 99, np.int32)
    kernels.quantize_tile(level, x, k, group, q, scale, sums)
    return q, scale, sums


class PackedLinear:
    """A weight [N, K] (int8 with `scale` [N], bf16 or f32) packed for a level."""

    def __init__(self, level: str, weight: Array, scale: Array | None = None, group: int = 0) -> None:
        self.level, self.group = level, group
        if weight.dtype == np.int8:
            tag, self.kernel = INT8_TAG[level], "i8"
        elif weight.dtype == BF16:
            tag, self.kernel = "panel16.bf16", "bf16"
        else:
            tag, self.kernel = "panel16.f32", "f32"
        self.weight = pack(tag, weight, group)
        self.n = self.weight.shape[0] * 16
        self.k = self.weight.shape[1] * self.weight.shape[3]
        self.scale = self.pad(scale) if scale is not None else None
        rows_i8, rows_float, tiles = kernels.tile_rows(level)
        self.tile_rows, self.call_tiles = (rows_i8, tiles) if self.kernel == "i8" else (rows_float, 1)

    def pad(self, vector: Array) -> Array:
        return np.concatenate([vector, np.zeros(self.n - len(vector), np.float32)])

    def call(
        self,
        x: Array,
        tile_rows: int,
        y: Array,
        residual: Array | None,
        bias: Array | None,
        epilogue: str,
        panels: tuple[int, int],
        activation: str = "silu",
    ) -> None:
        more = {
            "y": y,
            "bias": bias,
            "residual": residual,
            "epilogue": epilogue,
            "activation": activation,
            "panel_begin": panels[0],
            "panel_end": panels[1],
        }
        if self.kernel == "i8":
            starts = range(0, len(x), tile_rows)
            tiles = [quantize_tile(self.level, x[i : i + tile_rows], self.k, self.group) for i in starts]
            kernels.linear_i8(self.level, self.weight, self.scale, self.group, tiles, **more)
            return
        padded = np.zeros((len(x), self.k), np.float32)
        padded[:, : x.shape[1]] = x
        kernel = kernels.linear_bf16 if self.kernel == "bf16" else kernels.linear_f32
        weight = self.weight.view(np.uint16) if self.kernel == "bf16" else self.weight
        kernel(self.level, weight, padded, **more)

    def __call__(
        self,
        x: Array,
        bias: Array | None = None,
        epilogue: str = "none",
        residual: Array | None = None,
        activation: str = "silu",
        tile_rows: int | None = None,
        call_tiles: int | None = None,
        panels_per_call: int | None = None,
    ) -> Array:
        """y [rows][N padded] (gated: half of it), by calls of `call_tiles` tiles and `panels_per_call`."""
        columns = self.n // 2 if epilogue == "gated" else self.n
        y = np.full((len(x), columns), np.float32(-77), np.float32)
        if residual is not None:
            y[:] = residual  # the residual aliases y, as the runtime has it
        tile_rows = tile_rows or self.tile_rows
        step = tile_rows * (call_tiles or self.call_tiles)
        panels = self.n // 16
        for row in range(0, len(x), step):
            rows = slice(row, row + step)
            for begin in range(0, panels, panels_per_call or panels):
                end = min(panels, begin + (panels_per_call or panels))
                y_rows = y[rows]
                own = y_rows if residual is not None else None
                self.call(x[rows], tile_rows, y_rows, own, bias, epilogue, (begin, end), activation)
        return y


def random_weight(rng: np.random.Generator, kind: str, n: int, k: int) -> tuple[Array, Array | None]:
    """A weight of a kind (i8, bf16, f32) and, for i8, its scales: entries of about 1/√K."""
    if kind == "i8":
        weight = rng.integers(-127, 128, (n, k), dtype=np.int8)
        return weight, (rng.uniform(0.5, 1.5, n) / 127 / np.sqrt(k)).astype(np.float32)
    weight = (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
    return (weight.astype(BF16) if kind == "bf16" else weight), None
