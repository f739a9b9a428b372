"""How a request ends, and what is delivered with it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precast._native import runtime
from precast.errors import RequestError
from precast.runtime.text.vocab import Vocab
from tests.executors import Whole, collect, counting_logits, counting_tokens, held, params, run, wait

VOCAB = 26
LETTERS = runtime.VocabBytes.from_bytes(Vocab([bytes([97 + i]) for i in range(VOCAB)], [0] * VOCAB, 0).to_bytes())


def make(eos: tuple[int, ...] = (), **backend: float) -> runtime.Executor:
    settings = {"vocab_size": VOCAB, "max_batch_size": 4, "max_num_tokens": 32, "page_tokens": 8} | backend
    return runtime.Executor(
        runtime.CountingBackend(**settings),  # type: ignore[arg-type]
        num_pages=64,
        eos_token_ids=list(eos),
        vocab=LETTERS,
    )


PROMPT = [1, 2, 3]
ANSWER = counting_tokens(PROMPT, 40, VOCAB, params())
TEXT = "".join(chr(97 + t) for t in ANSWER)


def first(token: int) -> int:
    """Where a token first stands in the greedy answer."""
    return ANSWER.index(token)


def test_an_eos_token_ends_and_is_not_part_of_the_output() -> None:
    eos = ANSWER[7]
    whole = run(make((eos,)), PROMPT, params(max_tokens=40, logprobs=0))
    assert whole.token_ids == ANSWER[: first(eos)]
    assert whole.text == TEXT[: first(eos)]
    assert len(whole.logprobs) == first(eos)
    assert whole.last is not None
    assert (whole.finish_reason, whole.last.stop_token, whole.last.stop_string) == ("stop", eos, None)
    assert whole.last.completion_tokens == first(eos) + 1


def test_ignore_eos_goes_on_and_a_stop_token_still_ends() -> None:
    eos = ANSWER[7]
    assert run(make((eos,)), PROMPT, params(max_tokens=40, ignore_eos=True)).token_ids == ANSWER
    whole = run(make((eos,)), PROMPT, params(max_tokens=40, ignore_eos=True, stop_token_ids=[eos]))
    assert whole.token_ids == ANSWER[: first(eos)]


def test_with_min_tokens_no_stop_token_comes_before() -> None:
    ids = sorted(set(ANSWER[:4]))
    whole = run(make((ids[0],)), PROMPT, params(max_tokens=40, min_tokens=9, stop_token_ids=ids))
    assert len(whole.token_ids) >= 9
    assert not set(whole.token_ids) & set(ids)
    tokens = list(PROMPT)
    for token in whole.token_ids[:9]:
        logits = counting_logits(tokens, VOCAB)
        logits[ids] = -np.inf
        assert token == int(logits.argmax())
        tokens.append(token)


def test_a_stop_string_cuts_text_ids_and_logprobs_together() -> None:
    stop = TEXT[6:9]
    at = TEXT.index(stop)
    whole = run(make(), PROMPT, params(max_tokens=40, stop=["zzzz", stop], logprobs=1))
    assert (whole.text, whole.token_ids) == (TEXT[:at], ANSWER[:at])
    assert len(whole.logprobs) == at
    assert whole.last is not None
    assert (whole.finish_reason, whole.last.stop_string, whole.last.stop_token) == ("stop", stop, None)


def test_what_might_be_a_stop_string_is_held_back_and_flushed_at_the_end() -> None:
    executor = make()
    request = executor.submit(PROMPT, params(max_tokens=10, stop=[TEXT[4:10] + "!"]))
    texts = []
    done = False
    while not done:
        outputs: dict[int, Whole] = {}
        collect(executor, outputs)
        if request in outputs:
            texts.append(outputs[request].text)
            done = outputs[request].last is not None
    assert "".join(texts) == TEXT[:10]
    assert texts[-1].endswith(TEXT[4:10])


def test_logprobs_are_the_models_own_whatever_the_sampling() -> None:
    sampling = params(max_tokens=12, temperature=0.5, top_k=3, seed=5, logprobs=2)
    whole = run(make(), PROMPT, sampling)
    tokens = list(PROMPT)
    for token, logprob in zip(whole.token_ids, whole.logprobs, strict=True):
        logits = counting_logits(tokens, VOCAB).astype(np.float64)
        exact = logits[token] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert math.isclose(logprob, exact, abs_tol=1e-5)
        tokens.append(token)


def test_a_seed_repeats_and_without_one_a_random_seed_is_returned() -> None:
    executor = make()
    sampling = params(max_tokens=20, temperature=2.0)
    one, two = run(executor, PROMPT, sampling), run(executor, PROMPT, sampling)
    assert one.last is not None
    assert two.last is not None
    assert one.last.seed != two.last.seed
    assert one.token_ids != two.token_ids
    sampling.seed = one.last.seed
    assert run(executor, PROMPT, sampling).token_ids == one.token_ids


def test_cancel_delivers_what_came_so_far_and_is_final() -> None:
    executor = make(step_seconds=0.02, max_seq_len=4000)
    outputs: dict[int, Whole] = {}
    request = executor.submit(PROMPT, params(max_tokens=500))
    while not outputs.get(request, Whole()).token_ids:
        collect(executor, outputs)
    executor.cancel(request)
    executor.cancel(request)
    wait(executor, outputs, 1)
    executor.cancel(request)
    whole = outputs[request]
    assert whole.finish_reason == "cancelled"
    tokens = counting_tokens(PROMPT, len(whole.token_ids), VOCAB, params())
    assert whole.token_ids == tokens
    assert run(executor, PROMPT, params(max_tokens=3)).token_ids == ANSWER[:3]
    assert executor.stats().available_pages == 64


STATES: dict[str, Callable[[runtime.ExecutorStats], bool]] = {
    "paused executor": lambda stats: stats.waiting == 2,
    "waiting": lambda stats: (stats.running, stats.waiting) == (1, 1),
    "prefill": lambda stats: stats.running == 1 and 2 <= stats.steps - 1 < 8,
    "decode": lambda stats: stats.running == 2 and stats.steps >= 10,
    "paused": lambda stats: stats.running == stats.waiting == stats.pauses == 1,
    "finished": lambda stats: stats.finished == 2,
}


def in_state(state: str, length: int) -> tuple[runtime.Executor, dict[int, Whole], int, int] | None:
    """An executor, held where two requests are in a state; what has come so far; the other's id and the request's.
    None: the loop was past that state before it could be held."""
    executor = runtime.Executor(
        runtime.CountingBackend(
            vocab_size=VOCAB, max_batch_size=4, max_num_tokens=16, page_tokens=8, max_seq_len=256, step_seconds=0.002
        ),
        num_pages=20,
        max_batch_size=1 if state == "waiting" else 2,
        scheduler_policy="max_utilization",
        enable_prefix_caching=False,
        vocab=LETTERS,
    )
    outputs: dict[int, Whole] = {}
    if state == "paused executor":
        executor.pause()
    other = executor.submit(PROMPT, params(max_tokens=length))
    if state == "prefill":
        wait(executor, outputs, 1)
    request = executor.submit(
        [1] * 120 if state == "prefill" else PROMPT, params(max_tokens=1 if state == "prefill" else 100, stream=False)
    )
    while not STATES[state](stats := executor.stats()) and stats.finished < 2:
        time.sleep(0.0001)
    return (executor, outputs, other, request) if STATES[state](held(executor)) else None


@pytest.mark.parametrize("state", STATES)
def test_cancel_in_every_state_ends_that_request_alone_and_frees_its_pages(state: str) -> None:
    length = 1 if state == "prefill" else 100
    while (found := in_state(state, length)) is None:
        pass
    executor, outputs, other, request = found
    executor.cancel(request)
    executor.cancel(request + 1)  # there is none
    executor.resume()
    wait(executor, outputs, 2 - sum(whole.last is not None for whole in outputs.values()))
    assert outputs[request].finish_reason == ("length" if state == "finished" else "cancelled")
    assert outputs[other].token_ids == counting_tokens(PROMPT, length, VOCAB, params())
    if state in ("paused executor", "waiting", "prefill"):
        assert outputs[request].token_ids == []
    assert outputs[request].token_ids == counting_tokens(PROMPT, len(outputs[request].token_ids), VOCAB, params())
    assert run(executor, PROMPT, params(max_tokens=3)).token_ids == ANSWER[:3]
    stats = executor.stats()
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, 20)


def test_a_failed_backend_fails_its_requests_and_refuses_more() -> None:
    executor = make(fail_at_step=2)
    whole = run(executor, PROMPT, params(max_tokens=30))
    assert whole.finish_reason == "error"
    assert whole.last is not None
    assert whole.last.error == "the counting backend was told to fail"
    with pytest.raises(RequestError, match="told to fail"):
        executor.submit(PROMPT, params())
    assert executor.stats().error == "the counting backend was told to fail"


def test_usage_and_timings_are_told() -> None:
    last = run(make(), PROMPT, params(max_tokens=4)).last
    assert last is not None
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (3, 4, 0)
    assert 0 <= last.queue_seconds <= last.first_token_seconds <= last.total_seconds


def test_an_idle_executor_never_wakes() -> None:
    others = set(os.listdir("/proc/self/task"))
    executor = make()
    run(executor, PROMPT, params(max_tokens=2))
    own = set(os.listdir("/proc/self/task")) - others
    assert own

    def switches() -> list[str]:
        lines = [(Path("/proc/self/task") / t / "status").read_text().splitlines() for t in sorted(own)]
        return [line for status in lines for line in status if "ctxt_switches" in line]

    deadline = time.monotonic() + 60
    before: list[str] = []
    while (now := switches()) != before:  # it may still be on its way to sleep
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.3)
    executor.close()
