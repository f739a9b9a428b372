"""The attention kernels of one level, driven the way the CPU backend drives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precast._native import kernels
from precast.plugins.kv_append.reference import KV_DTYPES, LARGEST, kv_bytes, kv_round

PAGE = 32
SPLIT = 256

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


def tolerance(level: str, dtype: str, v: F32) -> float:
    """How far attention over v may be from its meaning (with `q_as_multiplied`): by sums in f32, and on avx512 by the
    weights' rounding, to bf16, of which each has an error of 2^-8 at most, or to 16-bit multiples of the largest."""
    weights = {"float32": 0.0, "int8": 2.0**-11}.get(dtype, 2.0**-8) if level == "avx512" else 0.0
    return float(np.abs(v).max()) * (weights + 2e-5)


class Cache:
    """The KV blocks of one layer and KV head for one sequence: pages in shuffled order, all bits of unused slots set,
    which is NaN in every dtype that has it."""

    def __init__(self, level: str, k: F32, v: F32, dtype: str) -> None:
        """k, v f32 [L, D]. The values as the pages hold them are in `k` and `v`."""
        self.level, self.dtype = level, dtype
        length, head_size = k.shape
        num_pages = -(-length // PAGE)
        self.table = np.random.default_rng(1).permutation(num_pages + 2)[:num_pages].astype(np.int32)
        self.blocks = np.full((num_pages + 2, PAGE * kv_bytes(head_size, dtype)), 0xFF, np.uint8)
        for position in range(length):
            self.append(position, k[position], v[position])
        self.k, self.v = kv_round(k, dtype), kv_round(v, dtype)

    def pages(self) -> tuple[Array, Array, F32]:
        """The blocks as `empty_pages` has them; scales of unscaled dtypes are 0."""
        elements, num_pages = KV_DTYPES[self.dtype], len(self.blocks)
        head_size = self.k.shape[1]
        end = 2 * PAGE * head_size * elements.itemsize
        keys, values = np.split(self.blocks[:, :end].copy().view(elements), 2, axis=1)
        scales = np.zeros((num_pages, 2, PAGE), np.float32)
        if self.dtype in LARGEST:
            scales = self.blocks[:, end:].copy().view(np.float32).reshape(scales.shape)
        return keys.reshape(num_pages, head_size, PAGE), values.reshape(num_pages, PAGE, head_size), scales

    def append(self, position: int, k: F32, v: F32) -> None:
        """Writes one token."""
        page = int(self.table[position // PAGE])
        kernels.kv_append(self.level, self.dtype, self.blocks, page, position % PAGE, k, v)

    def partial(self, q: F32, first_position: int, scale: float, split: int, **more: Any) -> F32:
        """One context split for q [rows, heads, D] → [rows·heads, 2 + D], in memory that held NaN before."""
        rows, heads, head_size = q.shape
        out = np.full((rows * heads, head_size + 2), np.nan, np.float32)
        kernels.attention_partial(
            self.level,
            self.dtype,
            np.ascontiguousarray(q),
            self.blocks,
            self.table,
            first_position,
            scale,
            split,
            out,
            **more,
        )
        return out

    def attend(self, q: F32, first_position: int, scale: float, tile_rows: int = 1 << 30, **more: Any) -> F32:
        """q f32 [T, heads, D] at first_position … → f32 [T, heads, D], in tiles of query rows.

        `more`: window, softcap and slopes of the kernel. Splits before the first tile's window are skipped.
        """
        window = more.get("window", 0)
        out = np.empty_like(q)
        for begin in range(0, len(q), tile_rows):
            tile = q[begin : begin + tile_rows]
            rows, heads, head_size = tile.shape
            at = first_position + begin
            state = np.full((rows * heads, head_size + 2), np.nan, np.float32)
            state[:, 1] = 0
            first = max(0, at - window + 1) // SPLIT if window else 0
            for split in range(first, (at + rows - 1) // SPLIT + 1):
                kernels.attention_merge(self.level, state, self.partial(tile, at, scale, split, **more))
            result = np.empty((rows * heads, head_size), np.float32)
            kernels.attention_finish(self.level, state, result)
            out[begin : begin + rows] = result.reshape(tile.shape)
        return out
