"""On real kernels: prefix hits, pauses, window pages that go and come, company - the bits are those of it alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precast._native import runtime
from precast.builder import BuildOptions, build
from precast.quantize import ConvertOptions, convert
from tests.executors import Whole, params, run, wait
from tests.tiny import VOCAB, random_tokens
from tests.tiny_families import TINY

ENGINES = {
    "full attention": ("llama", "bfloat16"),
    "full attention, int8 pages": ("llama", "int8"),
    "full and windowed": ("gemma3_text", "bfloat16"),
    "windowed": ("mistral", "float32"),
}
TEXTS = [random_tokens(200, seed) for seed in range(3)]


@dataclass(frozen=True)
class Ask:
    """A prompt that begins as one of TEXTS for `shared` tokens."""

    text: int
    shared: int
    own: list[int]
    max_tokens: int
    seed: int
    salt: str | None
    cancel: bool

    def prompt(self) -> list[int]:
        return TEXTS[self.text][: self.shared] + self.own

    def sampling(self) -> runtime.SamplingParams:
        sampling = params(max_tokens=self.max_tokens, seed=self.seed, temperature=0.8, logprobs=2, ignore_eos=True)
        sampling.stream = self.seed % 2 == 0
        return sampling


ASKS = st.builds(
    Ask,
    text=st.integers(0, len(TEXTS) - 1),
    shared=st.sampled_from([0, 1, 31, 32, 33, 64, 100, 128, 180]) | st.integers(0, 200),
    own=st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=40),
    max_tokens=st.integers(1, 50),
    seed=st.integers(0, 999),
    salt=st.sampled_from([None, None, "salt"]),
    cancel=st.sampled_from([False, False, False, True]),
)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, kv_cache_dtype = ENGINES[request.param]
    folder = tmp_path_factory.mktemp(family)
    TINY[family].save(folder / "hf", dtype=torch.bfloat16)
    convert(folder / "hf", folder / "ckpt", ConvertOptions())
    limits = BuildOptions(max_batch_size=6, max_num_tokens=96, max_seq_len=400, kv_cache_dtype=kv_cache_dtype)
    build(folder / "ckpt", folder / "engine", limits)
    return folder / "engine"


@pytest.fixture(scope="module")
def alone(engine: Path) -> runtime.Executor:
    """Answers one request at a time, and keeps nothing."""
    return runtime.Executor(runtime.Engine(engine, 1).backend, num_pages=64, enable_prefix_caching=False)


def bits(whole: Whole) -> tuple[list[int], list[float]]:
    return whole.token_ids, whole.logprobs


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asks=st.lists(ASKS, min_size=2, max_size=9),
    policy=st.sampled_from(["guaranteed_no_evict", "max_utilization"]),
    order=st.sampled_from(["fcfs", "cache_aware"]),
    prefill=st.sampled_from(["first_come", "equal_progress"]),
    budget=st.integers(38, 96),
    spare=st.integers(0, 8),
)
def test_every_request_has_the_bits_that_it_has_alone(
    engine: Path,
    alone: runtime.Executor,
    asks: list[Ask],
    policy: str,
    order: str,
    prefill: str,
    budget: int,
    spare: int,
) -> None:
    loaded = runtime.Engine(engine, 2)
    longest = max(-(-(len(a.prompt()) + a.max_tokens) // 32) for a in asks)
    executor = runtime.Executor(
        loaded.backend,
        num_pages=[longest + spare if group.window == 0 else min(longest, 4) + spare for group in loaded.limits.groups],
        scheduler_policy=policy,
        request_order=order,
        prefill_order=prefill,
        max_num_tokens=budget,
    )
    outputs: dict[int, Whole] = {}
    ids = []
    for ask in asks:
        ids.append(executor.submit(ask.prompt(), ask.sampling(), cache_salt=ask.salt))
        if ask.cancel:
            executor.cancel(ids[-1])
    wait(executor, outputs, len(asks))
    ids += [
        executor.submit(ask.prompt(), ask.sampling(), cache_salt=ask.salt) for ask in asks
    ]  # some of it is cached now
    wait(executor, outputs, len(asks))
    for request, ask in zip(ids, asks + asks, strict=True):
        tokens, logprobs = bits(outputs[request])
        expected = bits(run(alone, ask.prompt(), ask.sampling()))
        assert (tokens, logprobs) == (expected[0][: len(tokens)], expected[1][: len(tokens)])
        assert outputs[request].finish_reason == "length" or (ask.cancel and request in ids[: len(asks)])
    executor.close()
    stats = executor.stats()
    assert stats.available_pages == stats.num_pages


def test_a_second_asking_computes_one_row_of_the_prompt(engine: Path) -> None:
    executor = runtime.Executor(runtime.Engine(engine, 1).backend, num_pages=64)
    sampling = params(max_tokens=1, logprobs=2)
    first = run(executor, TEXTS[0], sampling)
    rows = executor.stats().step_tokens
    again = run(executor, TEXTS[0], sampling)
    assert bits(again) == bits(first)
    assert (rows, executor.stats().step_tokens - rows) == (200, 1)
    assert first.last is not None
    assert again.last is not None
    assert (first.last.cached_tokens, again.last.cached_tokens) == (0, 199)


def test_pauses_happen_and_do_not_show(engine: Path, alone: runtime.Executor) -> None:
    loaded = runtime.Engine(engine, 1)
    executor = runtime.Executor(loaded.backend, num_pages=8, scheduler_policy="max_utilization")
    sampling = params(max_tokens=150, logprobs=2, ignore_eos=True)
    outputs: dict[int, Whole] = {}
    ids = [executor.submit(text[:30], sampling) for text in TEXTS]
    wait(executor, outputs, len(ids))
    if loaded.limits.groups[0].window == 0:  # a window alone never takes so many pages
        assert executor.stats().pauses > 0
    for request, text in zip(ids, TEXTS, strict=True):
        assert bits(outputs[request]) == bits(run(alone, text[:30], sampling))
