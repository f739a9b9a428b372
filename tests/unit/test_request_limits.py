"""What is refused at enqueue, at N − 1, N and N + 1 of each limit; the others go on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from precast._native import runtime
from precast.errors import EngineError, RequestError
from tests.executors import params, run

VOCAB, SEQ_LEN, PAGES, PAGE_TOKENS = 50, 64, 6, 8  # the pool holds 48 positions


@pytest.fixture
def executor() -> runtime.Executor:
    backend = runtime.CountingBackend(
        vocab_size=VOCAB, max_batch_size=4, max_num_tokens=16, max_seq_len=SEQ_LEN, page_tokens=PAGE_TOKENS
    )
    return runtime.Executor(backend, num_pages=PAGES)


@pytest.fixture
def roomy() -> runtime.Executor:
    backend = runtime.CountingBackend(
        vocab_size=VOCAB, max_batch_size=4, max_num_tokens=16, max_seq_len=SEQ_LEN, page_tokens=PAGE_TOKENS
    )
    return runtime.Executor(backend, num_pages=32)


def refused(executor: runtime.Executor, prompt: list[int], match: str, **given: Any) -> None:
    with pytest.raises(RequestError, match=match):
        executor.submit(prompt, params(**given))
    assert run(executor, [1], params(max_tokens=2)).finish_reason == "length"


def test_an_empty_prompt_is_refused(executor: runtime.Executor) -> None:
    refused(executor, [], "prompt is empty")


@pytest.mark.parametrize("length", [SEQ_LEN - 2, SEQ_LEN - 1])
def test_a_prompt_below_max_seq_len_runs_to_it(roomy: runtime.Executor, length: int) -> None:
    whole = run(roomy, [3] * length, params(max_tokens=10))
    assert (len(whole.token_ids), whole.finish_reason) == (SEQ_LEN - length, "length")


@pytest.mark.parametrize("length", [SEQ_LEN, SEQ_LEN + 1])
def test_a_prompt_of_max_seq_len_or_more_is_refused(roomy: runtime.Executor, length: int) -> None:
    refused(roomy, [3] * length, f"{length} tokens, and this engine holds {SEQ_LEN}")


@pytest.mark.parametrize("max_tokens", [SEQ_LEN - 6, SEQ_LEN - 5, SEQ_LEN - 4, 2**31 - 1])
def test_max_tokens_beyond_max_seq_len_ends_there(roomy: runtime.Executor, max_tokens: int) -> None:
    whole = run(roomy, [3] * 5, params(max_tokens=max_tokens))
    assert len(whole.token_ids) == min(max_tokens, SEQ_LEN - 5)


def test_without_max_tokens_the_engine_or_the_pool_is_the_limit(
    roomy: runtime.Executor, executor: runtime.Executor
) -> None:
    assert len(run(roomy, [3] * 5, params()).token_ids) == SEQ_LEN - 5
    # The last token of all is never run, so one more than the pool's positions.
    assert len(run(executor, [3] * 5, params()).token_ids) == PAGES * PAGE_TOKENS + 1 - 5


def test_with_max_tokens_0_nothing_is_generated(executor: runtime.Executor) -> None:
    whole = run(executor, [3], params(max_tokens=0))
    assert (whole.token_ids, whole.text, whole.finish_reason) == ([], "", "length")


@pytest.mark.parametrize("max_tokens", [43, 44])
def test_what_just_fits_the_pool_runs(executor: runtime.Executor, max_tokens: int) -> None:
    assert len(run(executor, [3] * 5, params(max_tokens=max_tokens)).token_ids) == max_tokens


def test_what_can_never_fit_the_pool_is_refused(executor: runtime.Executor) -> None:
    refused(executor, [3] * 5, "needs 7 KV pages .* the pool has 6", max_tokens=45)
    refused(executor, [3] * 49, "KV pages")


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
def test_a_token_out_of_range_is_refused(executor: runtime.Executor, token: int) -> None:
    refused(executor, [1, token], f"token 1 of the prompt is {token}")


@pytest.mark.parametrize("token", [0, VOCAB - 1])
def test_the_first_and_the_last_token_run(executor: runtime.Executor, token: int) -> None:
    assert run(executor, [token], params(max_tokens=1)).finish_reason == "length"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0.0, 1e-300, 1000.0], [-0.1, math.nan, math.inf, 1001.0]),
        ("top_p", [1e-300, 1.0], [0.0, -1.0, 1.0000001, math.nan]),
        ("min_p", [0.0, 1.0], [-0.1, 1.1, math.nan]),
        ("top_k", [0, 2**31 - 1], [-1]),
        ("max_tokens", [1], [-1]),
        ("min_tokens", [0, 2], [-1, 3]),
        ("logprobs", [0, 64], [-1, 65]),
        ("stop_token_ids", [[0], [VOCAB - 1]], [[-1], [VOCAB]]),
    ],
)
def test_sampling_values(executor: runtime.Executor, name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert run(executor, [1], params(**{"max_tokens": 2, "temperature": 1.0, name: value})).finish_reason
    for value in bad:
        refused(executor, [1], name, **{"max_tokens": 2, name: value})


def test_stop_strings_need_a_vocabulary(executor: runtime.Executor) -> None:
    refused(executor, [1], "no tokenizer", stop=["x"])


def test_an_executor_that_cannot_run_is_refused() -> None:
    backend = runtime.CountingBackend(max_num_tokens=31)
    with pytest.raises(EngineError, match="at least one page of 32"):
        runtime.Executor(backend, num_pages=4)
    with pytest.raises(EngineError, match="no pages"):
        runtime.Executor(runtime.CountingBackend(), num_pages=0)
    with pytest.raises(EngineError, match="eos token 64"):
        runtime.Executor(runtime.CountingBackend(vocab_size=64), num_pages=4, eos_token_ids=[64])
