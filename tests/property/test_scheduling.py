"""Whatever runs together, is cancelled, waits for pages or is cut into chunks: each request's output is its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from precast._native import runtime
from tests.executors import Whole, collect, counting_tokens, params, wait

VOCAB = 24


@dataclass(frozen=True)
class Plan:
    """One request of a run."""

    prompt: list[int]
    max_tokens: int
    seed: int
    temperature: float
    top_k: int
    stream: bool
    cancel_after: int | None
    """Cancel it when this many more requests have been submitted (0: at once)."""
    pause: bool

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
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    max_tokens=st.integers(0, 24),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    top_k=st.sampled_from([0, 5]),
    stream=st.booleans(),
    cancel_after=st.none() | st.integers(0, 3),
    pause=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    plans=st.lists(PLANS, min_size=1, max_size=12),
    page_tokens=st.sampled_from([1, 4, 8]),
    spare_pages=st.integers(0, 20),
    budget=st.integers(8, 70),
    batch=st.integers(1, 6),
    poll=st.integers(0, 3),
)
def test_outputs_are_those_of_each_request_alone(
    plans: list[Plan], page_tokens: int, spare_pages: int, budget: int, batch: int, poll: int
) -> None:
    backend = runtime.CountingBackend(
        vocab_size=VOCAB, max_batch_size=batch, max_num_tokens=budget, max_seq_len=64, page_tokens=page_tokens
    )
    # The largest request just fits, so that with few spare pages requests wait for each other.
    num_pages = max(-(-(len(p.prompt) + p.max_tokens) // page_tokens) for p in plans) + spare_pages
    executor = runtime.Executor(backend, num_pages=num_pages)
    outputs: dict[int, Whole] = {}
    ids: list[int] = []
    finished = 0
    for number, plan in enumerate(plans):
        ids.append(executor.submit(plan.prompt, plan.sampling()))
        for other, earlier in enumerate(plans[: number + 1]):
            if earlier.cancel_after is not None and other + earlier.cancel_after == number:
                executor.cancel(ids[other])
        if plan.pause:  # lets the loop run some steps in between
            time.sleep(0.0005)
            finished += collect(executor, outputs, poll)
    wait(executor, outputs, len(plans) - finished, poll)
    assert sorted(outputs) == ids
    for request, plan in zip(ids, plans, strict=True):
        whole = outputs[request]
        whole_answer = counting_tokens(plan.prompt, plan.max_tokens, VOCAB, plan.sampling())
        assert whole.token_ids == whole_answer[: len(whole.token_ids)]
        if whole.finish_reason == "length":
            assert len(whole.token_ids) == plan.max_tokens
        else:
            assert whole.finish_reason == "cancelled"
            assert plan.cancel_after is not None
    executor.close(drain=True, timeout=60)
    stats = executor.stats()
    assert (stats.running, stats.waiting, stats.finished) == (0, 0, len(plans))
    assert stats.available_pages == stats.free_pages + stats.cached_pages == num_pages
    assert executor.poll() == []
