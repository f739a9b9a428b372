"""n, best_of, echo and the prompt's log-probabilities, over the counting model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from precast._native import runtime
from precast.errors import RequestError
from precast.plugins.sampling import reference
from tests.executors import counting_logits, params
from tests.unit.test_executor import LETTERS, VOCAB

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def make(enable_prefix_caching: bool = True, **backend: float) -> runtime.Executor:
    settings = {"vocab_size": VOCAB, "max_batch_size": 4, "max_num_tokens": 32, "page_tokens": 8} | backend
    return runtime.Executor(
        runtime.CountingBackend(**settings),  # type: ignore[arg-type]
        num_pages=64,
        vocab=LETTERS,
        enable_prefix_caching=enable_prefix_caching,
    )


def deltas(executor: runtime.Executor, prompt: list[int], **given: Any) -> list[runtime.OutputDelta]:
    """All deltas of one request."""
    request = executor.submit(prompt, params(**{"temperature": 1.0, "seed": 7, "max_tokens": 6} | given))
    found: list[runtime.OutputDelta] = []
    while not found or not found[-1].finished:
        found += executor.poll()
    assert {delta.id for delta in found} == {request}
    return found


def by_index(found: list[runtime.OutputDelta]) -> list[list[int]]:
    tokens: dict[int, list[int]] = {}
    for delta in found:
        tokens.setdefault(delta.index, []).extend(delta.token_ids)
    return [tokens[i] for i in range(len(tokens))]


def expected(prompt: list[int], index: int, count: int, seed: int = 7) -> tuple[list[int], float]:
    """Output `index` of a plain sampling request, and its cumulative log-probability."""
    tokens, total = list(prompt), 0.0
    for _ in range(count):
        logits = counting_logits(tokens, VOCAB)
        token = reference.choose(logits, runtime.random_bits(seed, index, len(tokens)))
        total += float(reference.log_softmax(logits)[token])
        tokens.append(token)
    return tokens[len(prompt) :], total


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_output_i_draws_with_the_random_bits_of_index_i(stream: bool, prefix_caching: bool) -> None:
    executor = make(enable_prefix_caching=prefix_caching)
    found = deltas(executor, PROMPT, n=5, stream=stream)
    assert by_index(found) == [expected(PROMPT, i, 6)[0] for i in range(5)]
    assert len({tuple(tokens) for tokens in by_index(found)}) > 1
    if not stream:
        assert [delta.index for delta in found] == [0, 1, 2, 3, 4]
    assert [delta.finished for delta in found] == [False] * (len(found) - 1) + [True]
    assert found[-1].completion_tokens == 30
    assert by_index(deltas(executor, PROMPT)) == [expected(PROMPT, 0, 6)[0]]


def test_sequences_of_a_request_share_its_prompt() -> None:
    alone, several = (make(page_tokens=4, enable_prefix_caching=False) for _ in range(2))
    deltas(alone, PROMPT)
    found = deltas(several, PROMPT, n=4)
    # Each further sequence runs what it samples and at most a page of the prompt again.
    assert several.stats().step_tokens <= alone.stats().step_tokens + 3 * (6 + 4)
    assert by_index(found) == [expected(PROMPT, i, 6)[0] for i in range(4)]


def test_best_of_gives_the_sequences_of_the_highest_cumulative_logprob() -> None:
    answers = [expected(PROMPT, i, 6) for i in range(8)]
    ranked = sorted(range(8), key=lambda i: (-answers[i][1], i))
    found = deltas(make(), PROMPT, n=3, best_of=8, stream=False)
    assert by_index(found) == [answers[i][0] for i in ranked[:3]]
    assert [delta.cumulative_logprob for delta in found] == pytest.approx([answers[i][1] for i in ranked[:3]], abs=1e-4)
    assert all(delta.logprobs == [] for delta in found)
    assert found[-1].completion_tokens == 48


def test_what_cannot_be_ranked_or_would_be_equal_is_refused() -> None:
    for given, sentence in (
        ({"n": 2, "temperature": 0.0}, "n is 2 with a temperature of 0"),
        ({"best_of": 2, "temperature": 0.0, "stream": False}, "best_of is 2 with a temperature of 0"),
        ({"best_of": 2}, "best_of is 2 and n 1; .* no stream"),
        ({"n": 3, "best_of": 2}, "best_of must be from n to 128"),
        ({"n": 0}, "n is 0; it must be from 1 to 128"),
        ({"prompt_logprobs": 65}, "prompt_logprobs is 65"),
    ):
        with pytest.raises(RequestError, match=sentence):
            deltas(make(), PROMPT, **given)


@pytest.mark.parametrize("budget", [8, 32])
def test_prompt_logprobs_are_those_of_each_token_after_those_before_it(budget: int) -> None:
    executor = make(max_num_tokens=budget)
    for _ in range(2):  # the second time, its pages are cached
        found = deltas(executor, PROMPT, prompt_logprobs=2, n=2, stream=False)
        for delta in found:
            assert delta.prompt_logprobs is not None
            assert len(delta.prompt_logprobs) == len(PROMPT) - 1
            for i, entry in enumerate(delta.prompt_logprobs, 1):
                exact = reference.log_softmax(counting_logits(PROMPT[:i], VOCAB))
                assert entry.logprob == pytest.approx(exact[PROMPT[i]], abs=1e-5)
                assert [t.token for t in entry.top] == list(np.argsort(-exact, kind="stable")[:2])
        assert by_index(found) == [expected(PROMPT, i, 6)[0] for i in range(2)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("max_tokens", "n", "logprobs"), list(itertools.product([0, 4], [1, 2], [None, 1])), ids=lambda value: str(value)
)
def test_echo_puts_the_prompt_first(stream: bool, max_tokens: int, n: int, logprobs: int | None) -> None:
    found = deltas(make(), PROMPT, echo=True, max_tokens=max_tokens, n=n, logprobs=logprobs, stream=stream)
    assert by_index(found) == [PROMPT + expected(PROMPT, i, max_tokens)[0] for i in range(n)]
    for i in range(n):
        own = [delta for delta in found if delta.index == i]
        assert "".join(delta.text for delta in own) == "".join(
            chr(97 + t) for t in PROMPT + expected(PROMPT, i, max_tokens)[0]
        )
        assert [delta.num_echoed for delta in own] == [len(PROMPT)] + [0] * (len(own) - 1)
        assert own[-1].finish_reason == "length"
        assert sum(len(delta.logprobs) for delta in own) == (max_tokens if logprobs is not None else 0)
        scored = own[0].prompt_logprobs
        assert (scored is not None) == (logprobs is not None)
        assert scored is None or len(scored) == len(PROMPT) - 1
    assert found[-1].completion_tokens == n * max_tokens


def test_one_token_of_prompt_has_nothing_to_score() -> None:
    found = deltas(make(), [3], echo=True, max_tokens=0, logprobs=1)
    assert (found[0].token_ids, found[0].prompt_logprobs) == ([3], [])


def test_a_cancelled_request_ends_all_its_outputs_once() -> None:
    executor = make(step_seconds=0.05)
    request = executor.submit(PROMPT, params(temperature=1.0, n=6, max_tokens=60))
    executor.cancel(request)
    found: list[runtime.OutputDelta] = []
    while not found or not found[-1].finished:
        found += executor.poll()
    assert sorted(delta.index for delta in found if delta.finish_reason is not None) == list(range(6))
    assert {delta.finish_reason for delta in found if delta.finish_reason} == {"cancelled"}
    executor.close(True, 10)
    stats = executor.stats()
    assert (stats.running, stats.available_pages) == (0, stats.num_pages)


def test_nan_logits_of_the_prompt_end_a_request_that_scores_it() -> None:
    found = deltas(make(poison_token=5), PROMPT, prompt_logprobs=0, n=2)
    assert {delta.finish_reason for delta in found} == {"error"}
    assert sorted(delta.index for delta in found) == [0, 1]
