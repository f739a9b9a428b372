"""How far the distributions of two models of one vocabulary lie apart."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass

import numpy as np

from precast.errors import PrecastError
from precast.evaluation.distributions import F64, kl_divergence, log_probabilities, perplexity_of
from precast.evaluation.model import Model, feed_all
from precast.evaluation.windows import Windows
from precast.progress import Progress, silent

CONTEXT_TOKENS = 16
"""Before a position, that are shown."""


@dataclass(frozen=True)
class Token:
    """A token, and what both models give it at one position."""

    id: int
    text: str
    probability_a: float
    probability_b: float


@dataclass(frozen=True)
class Position:
    """A position at which the two lie far apart."""

    window: int
    position: int
    """Of the token in its window, from 0 on."""
    kl: float
    context: str
    """The text of the tokens before it, CONTEXT_TOKENS at most."""
    token: Token
    """What the text goes on with."""
    top_a: Token
    """What A holds most likely, and B."""
    top_b: Token


@dataclass(frozen=True)
class Comparison:
    """KL(A ‖ B) in nats per token, over all positions at which a token is predicted."""

    windows: int
    tokens: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    """Share of positions at which both hold the same token most likely (of equal ones the lowest id)."""
    nats_per_token_a: float
    nats_per_token_b: float
    worst: list[Position]
    """The largest divergences, largest first."""
    seconds: float

    @property
    def perplexity_a(self) -> float:
        """Of A on the same tokens."""
        return perplexity_of(self.nats_per_token_a)

    @property
    def perplexity_b(self) -> float:
        """Of B on the same tokens."""
        return perplexity_of(self.nats_per_token_b)


def refuse_different_vocabularies(a: Model, b: Model) -> None:
    """Raises PrecastError unless both give logits of the same number of tokens, and mean the same tokens by them."""
    if a.vocab_size != b.vocab_size:
        raise PrecastError(
            f"{a.name} has {a.vocab_size} tokens and {b.name} {b.vocab_size}: only models of one vocabulary can be "
            "compared"
        )
    ids_a, ids_b = (model.tokenizer.rust.get_vocab(with_added_tokens=True) for model in (a, b))
    for token in sorted(ids_a.keys() | ids_b.keys(), key=lambda token: (ids_a.get(token, -1), token)):
        if ids_a.get(token) != ids_b.get(token):
            told = [f"{ids.get(token, 'missing')} in {m.name}" for ids, m in ((ids_a, a), (ids_b, b))]
            raise PrecastError(
                f"the token {token!r} is {' and '.join(told)}: only models of one tokenizer can be compared"
            )


def compare(a: Model, b: Model, text: Windows, worst: int = 5, progress: Progress = silent) -> Comparison:
    """Both models on the same windows. Raises PrecastError when their vocabularies differ, or logits are not finite."""
    refuse_different_vocabularies(a, b)
    begin = time.monotonic()
    divergences: list[float] = []
    losses_a: list[float] = []
    losses_b: list[float] = []
    same = 0
    found: list[tuple[float, int, Position]] = []  # a heap; the number breaks ties: the earlier position stays
    for number, window in enumerate(text.windows):
        progress("evaluate", number, len(text.windows))
        for at, (logits_a, logits_b) in feed_all([a, b], window[:-1]):
            for row, (row_a, row_b) in enumerate(zip(logits_a, logits_b, strict=True), at + 1):
                log_a, log_b = log_probabilities(row_a), log_probabilities(row_b)
                kl = kl_divergence(log_a, log_b)
                order = -len(divergences)
                divergences.append(kl)
                losses_a.append(-float(log_a[window[row]]))
                losses_b.append(-float(log_b[window[row]]))
                same += int(log_a.argmax() == log_b.argmax())
                if kl > 0 and worst > 0 and (len(found) < worst or kl > found[0][0]):
                    item = (kl, order, _position(a, number, row, window, kl, log_a, log_b))
                    (heapq.heappush if len(found) < worst else heapq.heapreplace)(found, item)
    progress("evaluate", len(text.windows), len(text.windows))
    count = len(divergences)
    return Comparison(
        windows=len(text.windows),
        tokens=count,
        kl_mean=math.fsum(divergences) / count,
        kl_median=float(np.median(divergences)),
        kl_p99=float(np.percentile(divergences, 99)),
        kl_max=max(divergences),
        top1_agreement=same / count,
        nats_per_token_a=math.fsum(losses_a) / count,
        nats_per_token_b=math.fsum(losses_b) / count,
        worst=[position for _, _, position in sorted(found, reverse=True)],
        seconds=time.monotonic() - begin,
    )


def token_of(model: Model, token: int, log_a: F64, log_b: F64) -> Token:
    """A token with both probabilities."""
    text = model.tokenizer.decode([token], skip_special_tokens=False)
    return Token(token, text, math.exp(float(log_a[token])), math.exp(float(log_b[token])))


def _position(a: Model, number: int, row: int, window: list[int], kl: float, log_a: F64, log_b: F64) -> Position:
    before = window[max(0, row - CONTEXT_TOKENS) : row]
    return Position(
        window=number,
        position=row,
        kl=kl,
        context=a.tokenizer.decode(before, skip_special_tokens=False),
        token=token_of(a, window[row], log_a, log_b),
        top_a=token_of(a, int(log_a.argmax()), log_a, log_b),
        top_b=token_of(a, int(log_b.argmax()), log_a, log_b),
    )
