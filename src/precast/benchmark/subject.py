"""An engine that is measured: its executor without text, and requests of random tokens."""

from __future__ import annotations

import select
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from precast._native import runtime as native
from precast.planning.kv_memory import limits_of
from precast.runtime.kv_pools import num_pages
from precast.runtime.memory import available_memory

WARM_UP_TOKENS = 64
"""Of the request that touches weights and starts threads before anything is measured."""


class Subject:
    """Runs requests of one engine from one thread. `options` are `native.Executor`'s."""

    def __init__(
        self,
        engine: Path,
        num_threads: int | None = None,
        kv_cache_memory: int | None = None,
        weights_memory: str = "map",
        **options: Any,
    ) -> None:
        """Raises EngineError for what is no engine, or does not run here."""
        self.limits = limits_of(engine)
        self.num_threads = num_threads or native.available_cpus()
        self.pages = num_pages(self.limits, kv_cache_memory, available_memory())
        self.executor = native.Executor(
            native.Engine(engine, self.num_threads, weights_memory).backend,
            num_pages=self.pages,
            iteration_stats=1 << 16,
            **options,
        )
        self._random = np.random.default_rng(0)
        self.run([self.tokens(min(WARM_UP_TOKENS, self.limits.max_seq_len - 2))], 2)

    def tokens(self, count: int) -> list[int]:
        """Random ones, different in every call."""
        return [int(t) for t in self._random.integers(0, self.limits.vocab_size, count)]

    def submit(self, prompt: list[int], output_tokens: int, **options: Any) -> int:
        """A greedy request that ends after output_tokens and not before. Raises RequestError when it does not fit."""
        params = native.SamplingParams()
        params.max_tokens, params.temperature, params.ignore_eos = output_tokens, 0.0, True
        return self.executor.submit(prompt, params, **options)

    def wait(self, seconds: float = 60.0) -> list[native.OutputDelta]:
        """What has come; waits for it at most so long."""
        select.select([self.executor.fileno()], [], [], max(0.0, seconds))
        return self.executor.poll()

    def run(self, prompts: Sequence[list[int]], output_tokens: int) -> list[native.OutputDelta]:
        """Prompts that come at the same time, to their end; → the last delta of each, in their order."""
        self.executor.pause()
        requests = [self.submit(prompt, output_tokens) for prompt in prompts]
        self.executor.resume()
        last: dict[int, native.OutputDelta] = {}
        while len(last) < len(requests):
            last |= {delta.id: delta for delta in self.wait() if delta.finished}
        return [last[request] for request in requests]

    def steps(self) -> list[native.IterationStats]:
        """What the steps since the last call were like."""
        return self.executor.iteration_stats()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.executor.close()
