"""What the executor tells of its steps and of each request's tokens."""

from __future__ import annotations

import time

import pytest

from precast._native import runtime
from tests.executors import Whole, params, run, wait

PAGE = 8


def make(num_pages: int = 64, **given: object) -> runtime.Executor:
    backend = runtime.CountingBackend(vocab_size=64, max_batch_size=4, max_num_tokens=32, page_tokens=PAGE)
    return runtime.Executor(backend, num_pages=num_pages, **given)  # type: ignore[arg-type]


def finish(executor: runtime.Executor, *requests: tuple[list[int], int]) -> dict[int, Whole]:
    """Runs requests of (prompt, max_tokens) that come at once."""
    outputs: dict[int, Whole] = {}
    executor.pause()
    for prompt, tokens in requests:
        executor.submit(prompt, params(max_tokens=tokens))
    # Answered without a step, once the loop has taken all before it: none of them enters a step later than another.
    executor.submit([1], params(max_tokens=0))
    wait(executor, {}, 1)
    executor.resume()
    wait(executor, outputs, len(requests))
    return outputs


def test_every_step_is_told_once_with_what_ran_in_it() -> None:
    executor = make()
    finish(executor, ([1] * 40, 3), ([2] * 5, 4))
    steps, lost = executor.iteration_stats()
    assert lost == 0
    assert [step.iter for step in steps] == [*range(1, executor.stats().steps + 1)]
    ran = [step.inflight_batching_stats for step in steps]
    # 32 rows a step: a's first 32, then its 8 with all of b, then both decode.
    assert [(b.num_context_requests, b.num_ctx_tokens, b.num_gen_requests) for b in ran] == [
        (1, 32, 0),
        (2, 13, 0),
        (0, 0, 2),
        (0, 0, 2),
        (0, 0, 1),
    ]
    assert all(b.num_scheduled_requests == b.num_context_requests + b.num_gen_requests for b in ran)
    assert [step.num_new_active_requests for step in steps] == [2, 0, 0, 0, 0]
    assert [step.num_completed_requests for step in steps] == [1, 0, 0, 1, 1]  # the first: what needed no step
    assert [step.num_active_requests for step in steps] == [2, 2, 2, 1, 0]
    assert {step.max_num_active_requests for step in steps} == {4}
    assert steps[0].new_active_requests_queue_latency_ms > 0
    assert executor.iteration_stats() == ([], 0)


def test_times_of_steps_are_those_of_the_clock() -> None:
    executor, begin = make(), time.time()
    finish(executor, ([1], 5))
    steps, _ = executor.iteration_stats()
    stamps = [step.timestamp for step in steps]
    assert begin <= stamps[0] <= stamps[-1] <= time.time()
    assert stamps == sorted(stamps)
    assert all(0 <= step.model_latency_ms <= step.iter_latency_ms for step in steps)
    assert sum(step.iter_latency_ms for step in steps) / 1000 <= time.time() - begin


def test_blocks_and_cache_hits_are_counted() -> None:
    executor = make(num_pages=20)
    finish(executor, ([*range(40)], 2))
    finish(executor, ([*range(33), 7], 2))
    last = executor.iteration_stats()[0][-1].kv_cache_stats
    # 5 pages of the first; the second finds 4 of its 5, and computes one.
    assert (last.reused_blocks, last.missed_blocks) == (4, 6)
    assert last.cache_hit_rate == pytest.approx(0.4)
    assert (last.max_num_blocks, last.tokens_per_block) == (20, PAGE)
    assert last.used_num_blocks == 0
    assert last.free_num_blocks == 20
    assert last.alloc_total_blocks == 6 + 1


def test_pauses_are_told_in_the_step_that_made_them_and_with_the_request() -> None:
    executor = make(num_pages=8, scheduler_policy="max_utilization")
    outputs = finish(executor, ([1] * 20, 30), ([2] * 20, 30))
    told = sum(step.inflight_batching_stats.num_paused_requests for step in executor.iteration_stats()[0])
    assert told == executor.stats().pauses > 0
    assert sum(whole.last.num_preemptions for whole in outputs.values() if whole.last) == told


def test_only_the_last_steps_are_kept_and_the_others_counted() -> None:
    executor = make(iteration_stats=3)
    finish(executor, ([1], 10))
    steps, lost = executor.iteration_stats()
    assert [step.iter for step in steps] == [8, 9, 10]
    assert lost == 7
    silent = make(iteration_stats=0)
    finish(silent, ([1], 10))
    assert silent.iteration_stats() == ([], 0)


def test_every_token_has_its_latency_and_they_add_up() -> None:
    executor = make()
    request = executor.submit([1, 2, 3], params(max_tokens=12))
    latencies: list[float] = []
    outputs: dict[int, Whole] = {}
    while not (whole := outputs.setdefault(request, Whole())).last:
        for delta in executor.poll(1):
            assert len(delta.token_latencies) == len(delta.token_ids)
            latencies += delta.token_latencies
            whole.last = delta if delta.finished else None
    assert len(latencies) == 12
    assert latencies[0] == pytest.approx(whole.last.first_token_seconds)
    assert min(latencies) >= 0
    assert sum(latencies) == pytest.approx(whole.last.total_seconds)


def test_an_echoed_prompt_has_no_latencies_and_a_stopped_output_as_many_as_tokens() -> None:
    executor = make()
    answer = run(executor, [1, 2, 3], params(max_tokens=20)).token_ids
    executor.submit([1, 2, 3], params(max_tokens=20, echo=True, stop_token_ids=[answer[5]], stream=False))
    outputs: dict[int, Whole] = {}
    wait(executor, outputs, 1)
    (whole,) = outputs.values()
    assert whole.last is not None
    assert len(whole.last.token_latencies) == len(whole.token_ids) - 3 == answer.index(answer[5])
