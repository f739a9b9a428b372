"""`linear`: y = x·Wᵀ + bias, and its int8 form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precast.plugins.quantize.reference import quantize

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


def linear(x: Array, weight: Array, bias: Array | None = None) -> F32:
    """x f32 [..., K], weight f32 or bf16 [N, K], bias f32 [N] → y f32 [..., N], computed in f32.

    A NaN or infinity in a row of x makes NaN or infinity of that row of y only.
    """
    y: F32 = np.asarray(x, np.float32) @ np.asarray(weight, np.float32).T
    return y if bias is None else y + np.asarray(bias, np.float32)


def linear_int8(x: Array, weight_int8: Array, scale: Array, group: int, bias: Array | None = None) -> F32:
    """x f32 [..., K], weight_int8 int8 [N, K] in −127 … 127, scale f32 [N], bias f32 [N] → y f32 [..., N].

    The weight's channel n stands for weight_int8[n] · scale[n]; x is quantized as `quantize(x, group)` does. The
    integer products of a group are summed exactly; then, in f32, acc = fma(group's scale, float(sum), acc) over groups
    in rising K, y = acc · scale[n], y + bias[n]. A NaN or infinity in a row of x makes that row of y NaN.
    """
    x = np.asarray(x, np.float32)
    k = x.shape[-1]
    columns = group or k
    q, activation_scale = quantize(x, group)
    acc = np.zeros((*x.shape[:-1], len(weight_int8)), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # huge activations overflow to infinity, as in the kernels
        for g, begin in enumerate(range(0, k, columns)):
            part = slice(begin, begin + columns)
            sums = (q[..., part].astype(np.float64) @ weight_int8[:, part].T.astype(np.float64)).astype(np.float32)
            # An FMA: the product of two f32 is exact in f64, and the sum is rounded once to f64 and once to f32.
            acc = (activation_scale[..., g, None].astype(np.float64) * sums + acc).astype(np.float32)
        y: F32 = acc * np.asarray(scale, np.float32)
        if bias is not None:
            y = y + np.asarray(bias, np.float32)
    return y
