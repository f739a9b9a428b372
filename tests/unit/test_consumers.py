"""Consumers that stop reading, raise, go away, or belong to another event loop: only their own requests notice."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from precast._native import runtime
from precast.errors import RequestError
from precast.pipeline import build
from precast.quantize import convert
from precast.runtime.async_llm import AsyncLLM
from precast.runtime.llm import LLM
from precast.runtime.output import RequestOutput
from precast.runtime.sampling import SamplingParams
from tests.executors import held, params
from tests.tiny import tiny_llama

PROMPT = [5, 6, 7]
SHORT = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0)
LONG = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)
ENDLESS = SamplingParams(ignore_eos=True, temperature=0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("consumers")
    tiny_llama(folder / "hf")
    convert(folder / "hf", folder / "checkpoint")
    build(folder / "checkpoint", folder / "engine")
    return folder / "engine"


@pytest.fixture
def llm(engine: Path) -> Iterator[LLM]:
    with LLM(engine, num_threads=1) as llm:
        yield llm


def is_idle(llm: LLM | AsyncLLM) -> bool:
    stats = llm.stats()
    return stats.running + stats.waiting == 0 and stats.available_pages == stats.num_pages


# ---- who stops reading ----


def counting() -> runtime.Executor:
    return runtime.Executor(runtime.CountingBackend(max_seq_len=1024), num_pages=128)


@pytest.mark.parametrize("n", [1, 3])
def test_deltas_that_nobody_polls_are_merged(n: int) -> None:
    wanted = params(max_tokens=300, n=n, temperature=1.0, seed=4, logprobs=1, stream=True)
    reader, sleeper = counting(), counting()
    read: dict[int, list[int]] = {}
    request = reader.submit(PROMPT, wanted)
    finished = False
    while not finished:
        for delta in reader.poll():
            read.setdefault(delta.index, []).extend(delta.token_ids)
            finished = delta.finished
    late = [sleeper.submit(PROMPT, wanted) for _ in range(2)]
    assert sleeper.close(drain=True, timeout=60)
    deltas = sleeper.poll()
    assert request == late[0]
    for id in late:
        own = [delta for delta in deltas if delta.id == id]
        assert len(own) <= n + (n > 1)
        assert [delta.finished for delta in own] == [False] * (len(own) - 1) + [True]
        for index in range(n):
            parts = [delta for delta in own if delta.index == index]
            assert [token for part in parts for token in part.token_ids] == read[index]
            assert [part.finish_reason for part in parts if part.finish_reason] == ["length"]
            assert all(len(part.logprobs) == len(part.token_latencies) == len(part.token_ids) for part in parts)


def test_a_part_of_what_waits_may_be_taken_while_more_is_merged() -> None:
    executor = counting()
    ids = [executor.submit(PROMPT, params(max_tokens=200, stream=True, seed=i)) for i in range(4)]
    tokens: dict[int, int] = dict.fromkeys(ids, 0)
    ended: list[int] = []
    while len(ended) < 4:
        for delta in executor.poll(1):
            tokens[delta.id] += len(delta.token_ids)
            ended += [delta.id] if delta.finished else []
    assert tokens == dict.fromkeys(ids, 200)
    assert sorted(ended) == ids


def test_a_stream_that_is_not_read_holds_one_part_and_nobody_up(llm: LLM) -> None:
    expected = llm.generate([PROMPT], LONG)[0].token_ids
    before = llm.stats().steps
    stream = llm.stream(PROMPT, LONG)
    until(lambda: llm.stats().steps > before)
    assert llm.generate([[8, 9]], SHORT)[0].finish_reason == "length"
    until(lambda: is_idle(llm))
    parts = list(stream)
    assert len(parts) <= 3  # the last may still be on its way
    assert [token for part in parts for token in part.token_ids] == expected


def test_in_asyncio_too(engine: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(engine, num_threads=1) as llm:
            expected = (await llm.generate([PROMPT], LONG))[0].token_ids
            stream = llm.stream(PROMPT, LONG)
            parts = [await anext(stream)]
            assert (await llm.generate([[8, 9]], SHORT))[0].finish_reason == "length"
            while not is_idle(llm):
                await asyncio.sleep(0.001)
            parts += [part async for part in stream]
            assert len(parts) <= 4  # in the outbox, too, one may lie with the last behind it
            assert [token for part in parts for token in part.token_ids] == expected

    asyncio.run(asyncio.wait_for(main(), 120))


# ---- who raises or leaves ----


def test_an_exception_in_progress_reaches_its_caller_and_cancels_its_requests_alone(llm: LLM) -> None:
    def progress(_what: str, done: int, _total: int) -> None:
        if done == 1:
            raise KeyError("mine")

    other = llm.stream([8, 9], LONG)
    with pytest.raises(KeyError, match="mine") as raised:
        llm.generate([PROMPT] * 6, [SHORT] + [LONG] * 5, progress=progress)
    assert sum(len(part.token_ids) for part in other) == 200
    until(lambda: is_idle(llm))
    assert raised.traceback  # the exception and its frames are still here


def test_answers_that_are_not_wanted_any_more_are_cancelled(llm: LLM) -> None:
    llm.pause()
    # The first needs no step; the others cannot begin.
    answers = llm.generate_each([PROMPT] * 6, [SamplingParams(max_tokens=0)] + [LONG] * 5)
    assert next(answers).finish_reason == "length"
    assert llm.stats().queued_requests == 5
    answers.close()  # type: ignore[attr-defined]
    until(lambda: is_idle(llm))
    assert (llm.stats().finished, llm.stats().steps) == (6, 0)


def test_what_a_task_raises_while_it_reads_cancels_its_request_alone(engine: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(engine, num_threads=1) as llm:

            async def broken() -> None:
                async for _ in llm.stream(PROMPT, LONG):
                    raise KeyError("mine")

            async def reader() -> int:
                return sum([len(part.token_ids) async for part in llm.stream([8, 9], LONG)])

            failed, read = await asyncio.gather(broken(), reader(), return_exceptions=True)
            assert isinstance(failed, KeyError)
            assert read == 200
            while not is_idle(llm):
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 120))


# ---- event loops ----


def test_what_a_closed_event_loop_has_left_is_cancelled_when_another_comes(engine: Path) -> None:
    llm = AsyncLLM(engine, num_threads=1)
    llm.pause()
    first = asyncio.new_event_loop()
    left = first.create_task(llm.generate(PROMPT, LONG))

    async def submitted() -> None:
        while llm.stats().queued_requests == 0:
            await asyncio.sleep(0.001)

    first.run_until_complete(submitted())
    left._log_destroy_pending = False  # type: ignore[attr-defined]
    first.close()

    async def second() -> None:
        request = asyncio.create_task(llm.generate(PROMPT, SHORT))
        while llm.stats().finished == 0:
            await asyncio.sleep(0.001)
        assert llm.stats().queued_requests == 1
        llm.resume()
        assert (await request)[0].finish_reason == "length"
        assert await llm.close()

    asyncio.run(asyncio.wait_for(second(), 120))


def test_a_second_event_loop_is_refused_and_the_first_goes_on(engine: Path) -> None:
    async def other(llm: AsyncLLM) -> None:
        with pytest.raises(RequestError, match="another running event loop"):
            await llm.generate(PROMPT, SHORT)
        with pytest.raises(RequestError, match="another running event loop"):
            await llm.close()

    async def main() -> None:
        async with AsyncLLM(engine, num_threads=1) as llm:
            stream = llm.stream(PROMPT, LONG)
            tokens = len((await anext(stream)).token_ids)
            await asyncio.to_thread(asyncio.run, other(llm))
            tokens += sum([len(part.token_ids) async for part in stream])
            assert tokens == 200

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_forgotten_asyncllm_leaves_its_event_loop_clean(engine: Path) -> None:
    async def main() -> list[int]:
        descriptors = []
        for _ in range(3):  # a descriptor that is still watched would hide the next one of its number
            llm = AsyncLLM(engine, num_threads=1)
            await llm.generate(PROMPT, SHORT)
            descriptors.append(llm._session.executor.fileno())
            del llm
            gc.collect()
            await asyncio.sleep(0.01)
        return descriptors

    descriptors = asyncio.run(asyncio.wait_for(main(), 60))
    assert len(set(descriptors)) < 3


# ---- the end ----


def test_close_tells_whether_every_request_came_to_its_end(engine: Path) -> None:
    for drain, asked, timeout, ended_well in (
        (True, SHORT, 60, True),
        (True, ENDLESS, 0, False),
        (False, LONG, 0, False),
    ):
        llm = LLM(engine, num_threads=1)
        llm.pause()  # which closing ends
        stream = llm.stream(PROMPT, asked)
        assert llm.close(drain=drain, timeout=timeout) is ended_well
        assert llm.close() is ended_well
        parts: list[RequestOutput] = list(stream)
        assert parts[-1].finish_reason == ("length" if ended_well else "cancelled")
    assert LLM(engine, num_threads=1).close() is True  # there were none

    async def main() -> None:
        llm = AsyncLLM(engine, num_threads=1)
        while True:
            stream = llm.stream(PROMPT, ENDLESS)
            await anext(stream)
            if held(llm).running:
                break
            llm.resume()  # it was at its end before it could be held
        closing = asyncio.create_task(llm.close(drain=False))
        assert [part.finish_reason async for part in stream][-1] == "cancelled"
        assert await closing is False

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_closed_llm_refuses_and_still_tells(engine: Path) -> None:
    llm = LLM(engine, num_threads=1)
    llm.close()
    for use in (lambda: llm.generate(PROMPT, SHORT), lambda: llm.stream(PROMPT, SHORT)):
        with pytest.raises(RequestError, match="shut down"):
            use()
    assert not llm.stats().alive

    async def main() -> None:
        other = AsyncLLM(engine, num_threads=1)
        await other.close()
        with pytest.raises(RequestError, match="shut down"):
            await other.generate(PROMPT, SHORT)
        with pytest.raises(RequestError, match="shut down"):
            await anext(other.stream(PROMPT, SHORT))
        assert await other.close() is True

    asyncio.run(main())


def test_closing_while_many_threads_ask_answers_or_refuses_each(engine: Path) -> None:
    llm = LLM(engine, num_threads=1)
    ends: list[str | None] = []

    def ask() -> None:
        try:
            while True:
                ends.append(llm.generate(PROMPT, SHORT)[0].finish_reason)
        except RequestError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: llm.stats().finished >= 20)
    llm.close(drain=True, timeout=60)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert {end for end in ends if end != "length"} == {"the engine is shut down and takes no more requests"}
