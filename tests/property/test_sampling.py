"""The chain from logits to a token is, bit for bit, what its plain meaning says (plugins/sampling/reference.py)."""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from precast._native import runtime
from precast.plugins.sampling import reference
from tests.executors import counting_logits, params

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


@settings(max_examples=600)
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


VOCAB = 24


@dataclass(frozen=True)
class Wish:
    """One request of a run."""

    prompt: list[int]
    max_tokens: int
    seed: int
    n: int
    stream: bool
    penalties: dict[str, Any]
    filters: dict[str, Any]

    def sampling(self) -> runtime.SamplingParams:
        chosen = {"max_tokens": self.max_tokens, "seed": self.seed, "n": self.n, "ignore_eos": True}
        return params(**chosen, stream=self.stream, **self.penalties, **self.filters)

    def tokens(self, index: int) -> list[int]:
        """Of output `index`, by the plain meaning, without executor, pages or batches."""
        output: list[int] = []
        while len(output) < self.max_tokens:
            held = self.prompt + output
            row = reference.process(counting_logits(held, VOCAB), self.prompt, output, **self.penalties)
            if np.isinf(row.max()):
                break  # nothing is left: an error
            output.append(reference.choose(row, runtime.random_bits(self.seed, index, len(held)), **self.filters))
        return output


WISHES = st.builds(
    Wish,
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    max_tokens=st.integers(0, 16),
    seed=st.integers(0, 2**64 - 1),
    n=st.integers(1, 3),
    stream=st.booleans(),
    penalties=st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.7, 1.3, 2.0]),
            "presence_penalty": st.floats(-2, 2),
            "frequency_penalty": st.floats(-2, 2),
            "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=3),
            "bad_words": st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2), max_size=30),
        },
    ),
    filters=st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.5, 1.0, 3.0])},
        optional={"top_k": st.integers(1, 30), "top_p": st.floats(0.05, 0.99), "min_p": st.floats(0, 1)},
    ),
)


@settings(max_examples=80)
@given(st.lists(WISHES, min_size=1, max_size=8), st.integers(8, 40), st.integers(1, 6), st.integers(0, 8))
def test_whatever_runs_together_each_output_is_its_own(
    wishes: list[Wish], budget: int, batch: int, spare_pages: int
) -> None:
    backend = runtime.CountingBackend(
        vocab_size=VOCAB, max_batch_size=batch, max_num_tokens=budget, max_seq_len=64, page_tokens=4
    )
    num_pages = max(-(-(len(wish.prompt) + wish.max_tokens) // 4) for wish in wishes) + spare_pages
    executor = runtime.Executor(backend, num_pages=num_pages, scheduler_policy="max_utilization")
    ids = [executor.submit(wish.prompt, wish.sampling()) for wish in wishes]
    tokens: dict[tuple[int, int], list[int]] = {}
    left = set(ids)
    while left:
        select.select([executor.fileno()], [], [], 60)
        for delta in executor.poll():
            tokens.setdefault((delta.id, delta.index), []).extend(delta.token_ids)
            left -= {delta.id} if delta.finished else set()
    executor.close(True, 10)
    for request, wish in zip(ids, wishes, strict=True):
        for index in range(wish.n):
            assert tokens[request, index] == wish.tokens(index)
