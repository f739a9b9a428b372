"""What holds requests up, and what refuses them: queue limits, timeouts, pause."""

from __future__ import annotations

import select
import threading
import time

import pytest

from precast._native import runtime
from precast.errors import QueueFullError, RequestError
from tests.executors import Whole, collect, params, wait


def executor(step_seconds: float = 0.0, **options: int) -> runtime.Executor:
    backend = runtime.CountingBackend(max_batch_size=1, max_seq_len=128, step_seconds=step_seconds)
    return runtime.Executor(backend, **({"num_pages": 8} | options))


def test_more_requests_than_may_wait_are_refused() -> None:
    e = executor(max_queued_requests=2)
    e.pause()
    ids = [e.submit([1, 2], params(max_tokens=2)) for _ in range(2)]
    with pytest.raises(QueueFullError, match="2 requests wait, which is max_queued_requests; try again later"):
        e.submit([1, 2], params(max_tokens=2))
    assert (e.stats().queued_requests, e.stats().queued_tokens, e.stats().paused) == (2, 4, True)
    e.cancel(ids[0])
    outputs: dict[int, Whole] = {}
    wait(e, outputs, 1)
    assert outputs[ids[0]].finish_reason == "cancelled"
    ids.append(e.submit([1, 2], params(max_tokens=2)))  # what is cancelled leaves the queue, in a pause too
    e.resume()
    wait(e, outputs, 2)
    assert [outputs[i].finish_reason for i in ids[1:]] == ["length", "length"]
    assert (e.stats().queued_requests, e.stats().queued_tokens) == (0, 0)
    e.close()


def test_longer_prompts_than_may_wait_are_refused_but_one_alone_is_not() -> None:
    e = executor(max_queued_tokens=10)
    e.pause()
    first = e.submit([1] * 40, params(max_tokens=1))
    with pytest.raises(QueueFullError, match=r"prompts of 40 tokens wait, and with 1 more .* max_queued_tokens \(10\)"):
        e.submit([1], params(max_tokens=1))
    e.resume()
    outputs: dict[int, Whole] = {}
    wait(e, outputs, 1)
    second = e.submit([1] * 5, params(max_tokens=1))
    wait(e, outputs, 1)
    assert outputs.keys() == {first, second}
    e.close()


def test_who_runs_does_not_count_as_waiting() -> None:
    e = executor(step_seconds=0.02, max_queued_requests=1)
    outputs: dict[int, Whole] = {}
    running = e.submit([1, 2, 3], params(max_tokens=100, stream=True))
    while not outputs:
        select.select([e.fileno()], [], [], 60)
        collect(e, outputs)
    waiting = e.submit([1], params(max_tokens=1))
    with pytest.raises(QueueFullError):
        e.submit([1], params(max_tokens=1))
    for request in (running, waiting):
        e.cancel(request)
    wait(e, outputs, 2)
    e.close()


def test_a_timeout_ends_a_request_wherever_it_is() -> None:
    e = executor(step_seconds=0.02)
    outputs: dict[int, Whole] = {}
    running = e.submit([1, 2, 3], params(max_tokens=120), timeout=1.5)  # of 2.4 s at least
    waiting = e.submit([1, 2, 3], params(max_tokens=1), timeout=0.05)
    free = e.submit([1, 2, 3], params(max_tokens=3), timeout=1e300)
    wait(e, outputs, 3)
    assert [outputs[i].finish_reason for i in (running, waiting, free)] == ["timeout", "timeout", "length"]
    assert 0 < len(outputs[running].token_ids) < 120
    assert outputs[waiting].token_ids == []
    e.pause()
    paused = e.submit([1, 2, 3], params(max_tokens=1), timeout=0.05)
    now = e.submit([1, 2, 3], params(max_tokens=1), timeout=0.0)
    wait(e, outputs, 2)
    assert outputs[paused].finish_reason == outputs[now].finish_reason == "timeout"
    stats = e.stats()
    assert (stats.waiting, stats.running, stats.queued_requests) == (0, 0, 0)
    assert stats.available_pages == stats.num_pages
    e.close()


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_timeouts_that_are_none_are_refused(timeout: float) -> None:
    e = executor()
    with pytest.raises(RequestError, match="timeout"):
        e.submit([1], params(max_tokens=1), timeout=timeout)
    e.close()


def test_no_step_begins_in_a_pause() -> None:
    e = executor()
    outputs: dict[int, Whole] = {}
    e.submit([1, 2, 3], params(max_tokens=2))
    wait(e, outputs, 1)
    e.pause()
    steps = e.stats().steps
    request = e.submit([4, 5], params(max_tokens=2))
    assert not select.select([e.fileno()], [], [], 0.2)[0]
    assert e.stats().steps == steps
    e.resume()
    wait(e, outputs, 1)
    assert outputs[request].finish_reason == "length"
    e.close()


def test_closing_in_a_pause_drains() -> None:
    e = executor()
    e.pause()
    request = e.submit([4, 5], params(max_tokens=2))
    e.close(drain=True, timeout=60)
    outputs: dict[int, Whole] = {}
    collect(e, outputs)
    assert outputs[request].finish_reason == "length"


def test_pauses_submissions_and_timeouts_from_many_threads() -> None:
    e = executor(max_queued_requests=30)
    refused = []

    def work(seed: int) -> None:
        for i in range(60):
            try:
                e.submit([seed + 1, i % 60], params(max_tokens=1 + i % 5), timeout=0.0 if i % 7 == 0 else 30.0)
            except QueueFullError:
                refused.append(i)
            if i % 20 == 0:
                e.pause()
                time.sleep(0.001)
                e.resume()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    outputs: dict[int, Whole] = {}
    finished = 0
    while any(thread.is_alive() for thread in threads) or finished < 240 - len(refused):
        select.select([e.fileno()], [], [], 0.05)
        finished += collect(e, outputs)
    assert finished == 240 - len(refused)
    assert e.stats().queued_requests == 0
    e.close()
