"""The chain from logits to a token is, bit for bit, what its plain meaning says (plugins/sampling/reference.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from precast._native import runtime
from precast.plugins.sampling import reference
from tests.executors import params

TOKENS = st.lists(st.integers(0, 7), max_size=12)  # few, so that words and repetitions occur


@st.composite
def rows(draw: st.DrawFn, most: int = 700) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits of up to `most` tokens, from flat to beyond any softmax, smooth or full of ties."""
    vocab = draw(st.integers(8, most))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = random.normal(size=vocab) * draw(st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0, 1e6, 1e38]))
    step = draw(st.sampled_from([0.0, 0.5, 4.0]))
    row = row if step == 0 else np.round(row / step) * step
    return np.asarray(np.clip(row + draw(st.sampled_from([0.0, -20.0])), -3e38, 3e38), np.float32)


PENALTIES = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0.5, 2) | st.sampled_from([1.0, 1000.0, 1e-9]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 7), st.floats(-100, 100), max_size=4),
        "bad_words": st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), max_size=6),
        "min_tokens": st.integers(0, 12),
        "stop_token_ids": st.lists(st.integers(0, 7), max_size=3),
    },
)
FILTERS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 1e-4, 0.3, 1.0, 1.0, 2.0, 900.0])},
    optional={
        "top_k": st.sampled_from([1, 2, 3, 40, 10000]),
        "top_p": st.sampled_from([0.999999, 0.95, 0.5, 1e-9]),
        "min_p": st.sampled_from([0.05, 0.5, 1.0]),
    },
)


@settings(max_examples=600, deadline=None)
@given(rows(), PENALTIES, FILTERS, TOKENS, TOKENS, st.integers(0, 2**64 - 1))
def test_a_token_is_what_the_plain_meaning_says(
    row: np.ndarray[Any, np.dtype[np.float32]],
    penalties: dict[str, Any],
    filters: dict[str, Any],
    prompt: list[int],
    output: list[int],
    random_bits: int,
) -> None:
    processed = reference.process(row, prompt, output, **penalties)
    expected = reference.choose(processed, random_bits, **filters)
    sampling = params(**penalties, **filters, logprobs=5)
    token, logprobs = runtime.sample(row, sampling, random_bits, prompt, output)
    assert token == expected
    exact = reference.log_softmax(row)
    scale = max(1.0, float(np.abs(row).max()) * 1e-3)
    assert abs(logprobs.logprob - exact[token]) <= 1e-5 * scale
    best = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))[:5]
    assert [t.token for t in logprobs.top] == best


def test_the_first_of_a_quarter_million_tokens_are_found() -> None:
    random = np.random.default_rng(5)
    for spread, temperature in ((3.0, 1.0), (0.01, 1.0), (8.0, 0.7)):
        row = np.asarray(random.normal(size=262144) * spread, np.float32)
        for filters in ({"top_k": 50}, {"top_k": 3000}, {"top_p": 0.95}, {"min_p": 0.02}, {"top_k": 64, "top_p": 0.5}):
            bits = int(random.integers(0, 2**63)) * 2
            token, _ = runtime.sample(row, params(temperature=temperature, **filters), bits)
            assert token == reference.choose(row, bits, temperature=temperature, **filters)
