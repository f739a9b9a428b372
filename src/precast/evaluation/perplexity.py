"""Perplexity of a model on a text."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from precast.evaluation.distributions import log_probabilities, perplexity_of
from precast.evaluation.model import Model, feed_all
from precast.evaluation.windows import Windows
from precast.progress import Progress, silent


@dataclass(frozen=True)
class Perplexity:
    """Of a model on windows of a text."""

    windows: int
    tokens: int
    """That were predicted."""
    nats_per_token: float
    """The mean of −ln p(token | those before it in its window)."""
    seconds: float
    """Of the measurement, without loading."""

    @property
    def perplexity(self) -> float:
        """e to the nats per token."""
        return perplexity_of(self.nats_per_token)


def perplexity(model: Model, text: Windows, progress: Progress = silent) -> Perplexity:
    """Predicts every token of the windows but the first of each. Raises PrecastError for logits that are not finite."""
    begin = time.monotonic()
    losses = []
    for done, window in enumerate(text.windows):
        progress("evaluate", done, len(text.windows))
        losses += nats(model, window)
    progress("evaluate", len(text.windows), len(text.windows))
    mean = math.fsum(losses) / len(losses)
    return Perplexity(len(text.windows), len(losses), mean, time.monotonic() - begin)


def nats(model: Model, window: list[int]) -> list[float]:
    """−ln p of every token of a window but its first. Raises as `perplexity` does."""
    found = []
    for at, (logits,) in feed_all([model], window[:-1]):
        for row, token in zip(logits, window[at + 1 :], strict=False):
            found.append(-float(log_probabilities(row)[token]))
    return found
