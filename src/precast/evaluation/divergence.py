"""Where the greedy answers of two models part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precast.evaluation.compare import Token, refuse_different_vocabularies, token_of
from precast.evaluation.distributions import log_probabilities
from precast.evaluation.model import F32, Model, feed_all, finite
from precast.evaluation.windows import Windows
from precast.progress import Progress, silent

PROMPT_TOKENS = 32
"""Of the text, at most."""


@dataclass(frozen=True)
class Divergence:
    """Of one prompt, greedily continued by A and B."""

    prompt: str
    equal_tokens: int
    """That both generate before they part; all of them, if they do not."""
    token_a: Token | None
    """What A goes on with where they part, and B; None: they do not."""
    token_b: Token | None


def prompts_of(text: Windows, count: int, seed: int = 0) -> list[list[int]]:
    """`count` prompts cut from a text at random places; each begins as its windows do."""
    ids = text.text_ids
    length = min(PROMPT_TOKENS, len(ids))
    starts = np.random.default_rng(seed).integers(0, len(ids) - length + 1, count)
    return [[*text.start, *ids[at : at + length]] for at in sorted(map(int, starts))]


def divergences(
    a: Model, b: Model, prompts: Sequence[list[int]], max_tokens: int, progress: Progress = silent
) -> list[Divergence]:
    """A generates max_tokens tokens behind each prompt, the most likely one each time (end tokens do not end it). B
    reads them: it would have generated the same ones up to the first that it does not hold most likely itself.

    Raises PrecastError for different vocabularies, and logits that are not finite.
    """
    refuse_different_vocabularies(a, b)
    found = []
    for done, prompt in enumerate(prompts):
        progress("generate", done, len(prompts))
        generated = _greedy(a, prompt, max_tokens)
        found.append(_divergence(a, b, prompt, generated))
    progress("generate", len(prompts), len(prompts))
    return found


def _greedy(model: Model, prompt: list[int], count: int) -> list[int]:
    generated = [int(_last_row(model, prompt).argmax())]
    while len(generated) < count:
        generated.append(int(finite(model, model.feed(generated[-1:]))[-1].argmax()))
    return generated


def _divergence(a: Model, b: Model, prompt: list[int], generated: list[int]) -> Divergence:
    text = a.tokenizer.decode(prompt, skip_special_tokens=False)
    fed = [*prompt, *generated[:-1]]
    for at, (logits,) in feed_all([b], fed):
        for row, token in enumerate(logits.argmax(axis=1).tolist(), at + 1 - len(prompt)):
            if row >= 0 and token != generated[row]:
                log_a = log_probabilities(_last_row(a, fed[: len(prompt) + row]))
                log_b = log_probabilities(logits[row + len(prompt) - 1 - at])
                tokens = [token_of(a, t, log_a, log_b) for t in (generated[row], token)]
                return Divergence(text, row, *tokens)
    return Divergence(text, len(generated), None, None)


def _last_row(model: Model, tokens: list[int]) -> F32:
    row: F32
    for _, (logits,) in feed_all([model], tokens):
        row = logits[-1]
    return row
