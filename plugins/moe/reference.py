"""`moe`: a mixture of experts (Shazeer et al., 2017): each token goes to a few of many gated feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

Expert = Callable[[F32], F32]
"""x f32 [n, H] → f32 [n, H]."""


def route(logits: Array, top_k: int, norm_topk_prob: bool) -> tuple[npt.NDArray[np.int64], F32]:
    """Router logits f32 [T, E] → (expert ids int [T, top_k] in rising order, their weights f32 [T, top_k]).

    The weights are the softmax over all experts, of the top_k most probable, divided by their sum when
    `norm_topk_prob`. Of equally probable experts the lower id is taken.
    """
    wide = np.asarray(logits, np.float64)
    p = np.exp(wide - wide.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    # Equal logits are equal probabilities, and rounding must not part them: the order is the logits'.
    chosen = np.sort(np.argsort(-wide, axis=-1, kind="stable")[:, :top_k], axis=-1)
    weights = np.take_along_axis(p, chosen, axis=-1)
    if norm_topk_prob:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return chosen, weights.astype(np.float32)


def moe(
    x: Array,
    router_logits: Array,
    experts: list[Expert],
    top_k: int,
    norm_topk_prob: bool,
    shared: Expert | None = None,
    shared_gate_logits: Array | None = None,
) -> F32:
    """x f32 [T, H], router_logits f32 [T, E] → f32 [T, H]: Σ weight · expert(x) over the token's experts in rising id.

    `shared`, which every token passes, is added last, times σ(shared_gate_logits f32 [T, 1]) when these are given. An
    expert sees only its own tokens: what it makes of others does not matter, NaN included.
    """
    x = np.asarray(x, np.float32)
    chosen, weights = route(router_logits, top_k, norm_topk_prob)
    out = np.zeros_like(x)
    for number, expert in enumerate(experts):
        rows, place = np.nonzero(chosen == number)
        if len(rows):
            out[rows] += weights[rows, place, None] * expert(x[rows])
    if shared is not None:
        extra = shared(x)
        if shared_gate_logits is not None:
            gate = 1 / (1 + np.exp(-np.asarray(shared_gate_logits, np.float64)))
            extra = extra * gate.astype(np.float32)
        out = out + extra
    return np.asarray(out, np.float32)
