"""The packed layouts of linear weights (docs/engine-format.md, "Layout tags"), and back.

A panel holds 16 output channels; inside it K runs slowest, so that one vector lane is one channel and a row of x needs
no horizontal sums. Padded channels and padded columns of K are zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PANEL = 16
"""Output channels of a panel."""

MAX_INT8_K = 133_120
"""Columns that an int32 sum of int8 products (at most 127²) can add up without overflow."""


class Layout(NamedTuple):
    """How one tag stores a weight [N, K]."""

    source: np.dtype[Any]  # dtype of the unpacked weight
    packed: np.dtype[Any]  # dtype of the packed weight
    inner: int  # neighbouring columns of K that lie together
    zero: int  # the packed value of zero


LAYOUTS = {
    "panel16.f32": Layout(np.dtype(np.float32), np.dtype(np.float32), 1, 0),
    "panel16.bf16": Layout(np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.bfloat16), 2, 0),
    "panel16x4.s8": Layout(np.dtype(np.int8), np.dtype(np.int8), 4, 0),
    "panel16x4.u8": Layout(np.dtype(np.int8), np.dtype(np.uint8), 4, 128),
}

INT8_TAG = {"avx2": "panel16x4.s8", "avx2_vnni": "panel16x4.u8", "avx512": "panel16x4.u8"}
"""The int8 layout of each ISA level."""


def _layout(tag: str) -> Layout:
    if tag not in LAYOUTS:
        raise ValueError(f"unknown weight layout {tag!r}; the layouts are {', '.join(LAYOUTS)}")
    return LAYOUTS[tag]


def padded_shape(tag: str, n: int, k: int, group: int = 0) -> tuple[int, int]:
    """N and K of a packed [n, k] weight: N to a multiple of 16, K to one of 4 (int8; and of the group) or 2 (bf16).

    `group`: columns of K that share an activation scale (int8 only), a multiple of 4, or 0 for per token.
    Raises ValueError for an unknown tag or a group that does not fit it.
    """
    layout = _layout(tag)
    if group and (layout.inner != 4 or group < 0 or group % 4):
        raise ValueError(f"group {group} does not fit layout {tag}: int8 takes 0 or a multiple of 4, the others 0")
    step = group or layout.inner
    padded_k = -(-k // step) * step
    if layout.inner == 4 and (group or padded_k) > MAX_INT8_K:
        raise ValueError(f"an int8 weight of {k} columns needs activation groups of at most {MAX_INT8_K} columns")
    return -(-n // PANEL) * PANEL, padded_k


def pack(tag: str, weight: Array, group: int = 0) -> Array:
    """Packs a weight [N, K] of the tag's dtype (int8, bfloat16, float32) into panels [N/16][K/inner][16][inner].

    N and K are padded as `padded_shape` says. Works panel by panel: beside the result it needs a few panels of memory,
    so `weight` may be a memory map. int8 weights must not hold −128, whose magnitude the AVX2 kernel cannot represent.
    Raises ValueError for a wrong tag, dtype, shape, group or value.
    """
    layout = _layout(tag)
    if weight.ndim != 2 or weight.dtype != layout.source or 0 in weight.shape:
        raise ValueError(
            f"layout {tag} packs a non-empty {layout.source} matrix, not {weight.dtype} {list(weight.shape)}"
        )
    n, k = weight.shape
    padded_n, padded_k = padded_shape(tag, n, k, group)
    packed = np.empty((padded_n // PANEL, padded_k // layout.inner, PANEL, layout.inner), layout.packed)
    panels_at_once = max(1, 2**22 // (PANEL * padded_k * layout.packed.itemsize))
    for first in range(0, len(packed), panels_at_once):
        out = packed[first : first + panels_at_once]
        rows = weight[first * PANEL : (first + len(out)) * PANEL]
        if layout.inner == 4 and rows.min() == -128:
            raise ValueError(f"an int8 weight of layout {tag} holds -128; quantize to -127 … 127")
        block = np.zeros((len(out) * PANEL, padded_k), layout.source)
        block[: len(rows), :k] = rows
        if layout.zero:
            block = block.view(np.uint8) ^ np.uint8(layout.zero)  # s8 + 128
        out[...] = block.reshape(len(out), PANEL, -1, layout.inner).transpose(0, 2, 1, 3)
    return packed


def unpack(tag: str, packed: Array, n: int, k: int) -> Array:
    """The weight [n, k] that `pack` packed, without its padding. Raises ValueError when `packed` cannot hold it."""
    layout = _layout(tag)
    panels = packed.shape[0] if packed.ndim == 4 else 0
    if packed.dtype != layout.packed or packed.ndim != 4 or packed.shape[2:] != (PANEL, layout.inner):
        raise ValueError(f"not a weight of layout {tag}: {packed.dtype} {list(packed.shape)}")
    if n > panels * PANEL or k > packed.shape[1] * layout.inner:
        raise ValueError(f"a packed weight {list(packed.shape)} does not hold [{n}, {k}]")
    weight = packed.transpose(0, 2, 1, 3).reshape(panels * PANEL, -1)[:n, :k]
    return (weight ^ np.uint8(layout.zero)).view(np.int8) if layout.zero else np.ascontiguousarray(weight)


def interleave_gate_up(gate: Array, up: Array) -> Array:
    """Gate and up, both [N, …] of the same shape and dtype, as [2N', …] in alternating panels of 16 channels.

    What the `gated` epilogue wants: channels 16·2p … hold the gate's 16p …, channels 16·(2p + 1) … the up's. N' is N
    padded to a multiple of 16 with zeros. Works on weights [N, K], biases [N] and scales [N] alike.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(f"gate {gate.dtype} {list(gate.shape)} and up {up.dtype} {list(up.shape)} differ")
    n, rest = gate.shape[0], gate.shape[1:]
    panels = -(-n // PANEL)
    out = np.zeros((panels, 2, PANEL, *rest), gate.dtype)
    full = n // PANEL
    for i, source in enumerate((gate, up)):
        out[:full, i] = source[: full * PANEL].reshape(full, PANEL, *rest)
        if n % PANEL:
            out[full, i, : n % PANEL] = source[full * PANEL :]
    return out.reshape(2 * panels * PANEL, *rest)
