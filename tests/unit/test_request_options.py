"""What a request and an engine may be told about scheduling and the prefix cache, as a user writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast import LLM, AsyncLLM, RequestOptions, SamplingParams
from precast._native import runtime
from precast.errors import EngineError, QueueFullError, RequestError
from tests.steps import make_engine
from tests.tiny import random_tokens, tiny_llama

PROMPT = random_tokens(100)
SAMPLING = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    tiny_llama(folder / "hf")
    return make_engine(folder / "hf", folder, max_seq_len=256)


@pytest.fixture
def llm(engine: Path) -> Iterator[LLM]:
    with LLM(engine) as llm:
        yield llm


def cached(llm: LLM, prompt: list[int], **options: Any) -> int:
    return llm.generate([prompt], SAMPLING, options=RequestOptions(**options))[0].usage.cached_tokens


def test_a_prompt_that_was_answered_before_is_cached_but_for_its_last_token(llm: LLM) -> None:
    first, again = llm.generate([PROMPT], SAMPLING)[0], llm.generate([PROMPT], SAMPLING)[0]
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, len(PROMPT) - 1)
    assert (first.token_ids, first.logprobs) == (again.token_ids, again.logprobs)
    # The answer is cached too, but for its last token, which was never run.
    longer = PROMPT + first.token_ids
    assert cached(llm, [*longer, 7]) == len(longer) - 1
    assert cached(llm, [*PROMPT[:50], 7]) == 50


def test_equal_prompts_of_one_call_are_computed_once(llm: LLM) -> None:
    outputs = llm.generate([PROMPT] * 5, SAMPLING)
    assert sorted(output.usage.cached_tokens for output in outputs) == [0, *[len(PROMPT) - 1] * 4]
    assert all(output.token_ids == outputs[0].token_ids for output in outputs)


def test_a_salt_keeps_apart(llm: LLM) -> None:
    assert cached(llm, PROMPT, cache_salt="a") == 0
    assert cached(llm, PROMPT, cache_salt="b") == 0
    assert cached(llm, PROMPT) == 0
    assert cached(llm, PROMPT, cache_salt="") == 0
    assert cached(llm, PROMPT, cache_salt="a") == len(PROMPT) - 1


def test_streams_chats_and_asyncio_take_options(engine: Path) -> None:
    async def run() -> list[int]:
        llm = AsyncLLM(engine)
        salted = RequestOptions(cache_salt="x")
        first = await llm.generate(PROMPT, SAMPLING, options=salted)
        streamed = [part async for part in llm.stream(PROMPT, SAMPLING, options=salted)]
        other = [part async for part in llm.stream(PROMPT, SAMPLING)]
        await llm.close()
        return [out.usage.cached_tokens for out in (first[0], streamed[-1], other[-1])]

    assert asyncio.run(run()) == [0, len(PROMPT) - 1, 0]
    with LLM(engine) as llm:
        last = [list(llm.stream(PROMPT, SAMPLING, options=RequestOptions(priority=-3)))[-1] for _ in range(2)]
        assert [out.usage.cached_tokens for out in last] == [0, len(PROMPT) - 1]
        with pytest.raises(RequestError, match="2 prompts and 1 options"):
            llm.generate([PROMPT, PROMPT], SAMPLING, options=[RequestOptions()])


def test_a_full_queue_is_told_of_the_prompt_that_met_it(engine: Path) -> None:
    with LLM(engine, max_queued_requests=1) as llm:
        llm.pause()
        with pytest.raises(QueueFullError, match="prompt 1: the queue is full"):
            llm.generate([PROMPT, PROMPT], SAMPLING)


def test_without_prefix_caching_everything_is_computed_and_nothing_stays(engine: Path) -> None:
    with LLM(engine, enable_prefix_caching=False) as llm:
        assert cached(llm, PROMPT) == cached(llm, PROMPT) == 0
        rows = llm.stats().step_tokens
        llm.generate([PROMPT], SamplingParams(max_tokens=2, temperature=1, n=3, ignore_eos=True))
        assert llm.stats().step_tokens - rows == len(PROMPT) + 2 + 3  # they share the prompt all the same
        assert llm.stats().cached_pages == 0
        assert llm.stats().free_pages == llm.stats().num_pages


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": 1.5}, "priority is 1.5"),
        ({"priority": True}, "priority is True"),
        ({"priority": 2**31}, "priority is 2147483648"),
        ({"cache_priority": 101}, "cache_priority is 101; it must be from 0 to 100"),
        ({"cache_priority": -1}, "cache_priority is -1"),
        ({"cache_salt": 3}, "cache_salt is 3; it must be a text"),
        ({"cache_salt": "\ud800"}, "lone surrogate"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        RequestOptions(**options)


def test_a_salt_that_is_too_long_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="cache_salt has 2000 bytes; at most 1024"):
        cached(llm, PROMPT, cache_salt="x" * 2000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"scheduler_policy": "fastest"},
            "scheduler_policy is fastest; it must be one of guaranteed_no_evict, ",
        ),
        ({"request_order": "lifo"}, "request_order is lifo; it must be one of fcfs, priority, cache_aware"),
        ({"prefill_order": "last"}, "prefill_order is last; it must be one of first_come, equal_progress"),
        ({"max_overtakes": -1}, "max_overtakes is -1; it must be from 0"),
        ({"max_chunk_tokens": 2**40}, "max_chunk_tokens is 1099511627776; it must be from 0"),
        ({"max_chunk_tokens": "many"}, "max_chunk_tokens is 'many'; it must be a whole number"),
        ({"scheduler_policy": 3}, "scheduler_policy is 3; it must be a text"),
    ],
)
def test_wrong_scheduling_is_one_sentence(engine: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        LLM(engine, **options)


def test_events_tell_what_the_cache_holds() -> None:
    backend = runtime.CountingBackend(page_tokens=4)
    executor = runtime.Executor(backend, num_pages=32, kv_events=100)
    sampling = runtime.SamplingParams()
    sampling.max_tokens = 1
    executor.submit(list(range(10)), sampling, cache_salt="s")
    executor.close(drain=True, timeout=60)
    events, lost = executor.kv_events()
    assert lost == 0
    assert [e.kind for e in events] == ["stored"] * 3
    assert [e.tokens for e in events] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [e.parent for e in events] == [0, events[0].node, events[1].node]
    assert events[0].key == b"salt1:s"
    assert executor.kv_events() == ([], 0)
