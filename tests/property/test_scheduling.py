"""Whatever runs together, is cancelled, paused, waits for pages, is found in the cache or cut into chunks: each
request's output is its own. tests/cpp/test_simulation.cpp does this without threads, for thousands of schedules."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from precast._native import runtime
from tests.executors import CountingModel, Whole, collect, counting_tokens, params, wait

RANGE, FAMILIES = 12, 3
"""Requests of different families have no token in common; the backend fails when one finds another's."""


@dataclass(frozen=True)
class Plan:
    """One request of a run. Its prompt begins as that of all of its family for `same` tokens."""

    family: int
    same: int
    own: list[int]
    max_tokens: int
    seed: int
    temperature: float
    top_k: int
    stream: bool
    cancel_after: int | None
    """Cancel it when this many more requests have been submitted (0: at once)."""
    pause: bool
    wishes: dict[str, Any]

    def prompt(self) -> list[int]:
        return [RANGE * self.family + t for t in [i % 5 for i in range(self.same)] + self.own]

    def sampling(self) -> runtime.SamplingParams:
        return params(
            max_tokens=self.max_tokens,
            seed=self.seed,
            temperature=self.temperature,
            top_k=self.top_k,
            ignore_eos=True,
            stream=self.stream,
        )


PLANS = st.builds(
    Plan,
    family=st.integers(0, FAMILIES - 1),
    same=st.integers(0, 30),
    own=st.lists(st.integers(0, RANGE - 1), min_size=1, max_size=10),
    max_tokens=st.integers(0, 24),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    top_k=st.sampled_from([0, 5]),
    stream=st.booleans(),
    cancel_after=st.none() | st.integers(0, 3),
    pause=st.booleans(),
    wishes=st.fixed_dictionaries(
        {
            "priority": st.integers(-1, 1),
            "cache_salt": st.sampled_from([None, None, "", "salt"]),
            "cache_priority": st.sampled_from([0, 35, 100]),
        }
    ),
)
SCHEDULING = st.fixed_dictionaries(
    {
        "scheduler_policy": st.sampled_from(["guaranteed_no_evict", "max_utilization", "static_batch"]),
        "request_order": st.sampled_from(["fcfs", "priority", "cache_aware"]),
        "prefill_order": st.sampled_from(["first_come", "equal_progress"]),
        "max_overtakes": st.integers(0, 3),
        "enable_prefix_caching": st.sampled_from([True, True, False]),
    }
)


@settings(max_examples=200)
@given(
    plans=st.lists(PLANS, min_size=1, max_size=12),
    scheduling=SCHEDULING,
    windows=st.sampled_from([(0,), (0,), (0, 5), (7,), (0, 1, 16)]),
    page_tokens=st.sampled_from([1, 4, 8]),
    spare_pages=st.integers(0, 20),
    budget=st.integers(8, 70),
    batch=st.integers(1, 6),
    poll=st.integers(0, 3),
)
def test_outputs_are_those_of_each_request_alone(
    plans: list[Plan],
    scheduling: dict[str, Any],
    windows: tuple[int, ...],
    page_tokens: int,
    spare_pages: int,
    budget: int,
    batch: int,
    poll: int,
) -> None:
    vocab = RANGE * FAMILIES
    backend = runtime.CountingBackend(
        vocab_size=vocab,
        max_batch_size=batch,
        max_num_tokens=budget,
        max_seq_len=70,
        page_tokens=page_tokens,
        range=RANGE,
        windows=list(windows),
    )
    # The largest request just fits, so that with few spare pages requests wait for each other or are paused.
    longest = max(-(-(len(p.prompt()) + p.max_tokens) // page_tokens) for p in plans)
    most = [longest if w == 0 else min(longest, (w + 2 * page_tokens - 3) // page_tokens + 1) for w in windows]
    executor = runtime.Executor(backend, num_pages=[pages + spare_pages for pages in most], **scheduling)
    outputs: dict[int, Whole] = {}
    ids: list[int] = []
    finished = 0
    for number, plan in enumerate(plans):
        ids.append(executor.submit(plan.prompt(), plan.sampling(), **plan.wishes))
        for other, earlier in enumerate(plans[: number + 1]):
            if earlier.cancel_after is not None and other + earlier.cancel_after == number:
                executor.cancel(ids[other])
        if plan.pause:  # lets the loop run some steps in between
            time.sleep(0.0005)
            finished += collect(executor, outputs, poll)
    wait(executor, outputs, len(plans) - finished, poll)
    assert sorted(outputs) == ids
    model = CountingModel(vocab, range=RANGE, windows=windows)
    for request, plan in zip(ids, plans, strict=True):
        whole = outputs[request]
        whole_answer = counting_tokens(plan.prompt(), plan.max_tokens, model, plan.sampling())
        assert whole.token_ids == whole_answer[: len(whole.token_ids)]
        assert whole.last is not None
        if whole.finish_reason == "length":
            assert len(whole.token_ids) == plan.max_tokens
        else:
            assert whole.finish_reason == "cancelled"
            assert plan.cancel_after is not None
        assert whole.last.cached_tokens < len(plan.prompt())
        event("cached" if whole.last.cached_tokens else "not cached")
    executor.close(drain=True, timeout=60)
    stats = executor.stats()
    assert (stats.running, stats.waiting, stats.finished) == (0, 0, len(plans))
    assert stats.available_pages == stats.free_pages + stats.cached_pages == stats.num_pages
    assert stats.cached_pages == 0 or scheduling["enable_prefix_caching"]
    assert stats.pauses == 0 or scheduling["scheduler_policy"] == "max_utilization"
    event("paused" if stats.pauses else "not paused")
    assert executor.poll() == []
