"""Distributions over the vocabulary, one row of logits at a time, in float64: the differences that count are far
smaller than float32 resolves beside logits of 30."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def log_probabilities(logits: npt.NDArray[np.float32]) -> F64:
    """Natural logarithms of softmax(logits), [vocab_size]."""
    above = logits.astype(np.float64)
    above -= above.max()
    above -= np.log(np.exp(above).sum())
    return above


def kl_divergence(log_p: F64, log_q: F64) -> float:
    """KL(p ‖ q) = Σ p · (ln p − ln q), in nats; not negative. S. Kullback, R. Leibler, 1951."""
    return max(0.0, float(np.exp(log_p) @ (log_p - log_q)))  # rounding may leave −1e−16 of equal ones


def perplexity_of(nats_per_token: float) -> float:
    """e to the nats per token; infinity where float64 ends."""
    return math.exp(nats_per_token) if nats_per_token < 709 else math.inf
