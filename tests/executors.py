"""Driving an executor over the counting backend, and that model written again in Python: the oracle of both."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from precast._native import runtime
from precast.runtime.base_llm import BaseLLM

MASK = 2**64 - 1


@dataclass
class Whole:
    """A request's deltas, put together."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    last: runtime.OutputDelta | None = None

    @property
    def finish_reason(self) -> str | None:
        return self.last.finish_reason if self.last is not None else None


def params(**given: Any) -> runtime.SamplingParams:
    """The core's parameters; greedy unless told."""
    out = runtime.SamplingParams()
    out.temperature = 0.0
    for name, value in given.items():
        setattr(out, name, value)
    return out


def collect(executor: runtime.Executor, outputs: dict[int, Whole], max: int = 0) -> int:
    """Adds what is ready to `outputs`; → how many requests finished. Fails when one goes on after its end."""
    finished = 0
    for delta in executor.poll(max):
        whole = outputs.setdefault(delta.id, Whole())
        assert whole.last is None, f"request {delta.id} goes on after it finished"
        whole.token_ids += delta.token_ids
        whole.text += delta.text
        whole.logprobs += [entry.logprob for entry in delta.logprobs]
        if delta.finished:
            whole.last = delta
            finished += 1
    return finished


def wait(executor: runtime.Executor, outputs: dict[int, Whole], count: int, max: int = 0) -> None:
    """Collects until `count` more requests have finished."""
    while count > 0:
        ready, _, _ = select.select([executor.fileno()], [], [], 60)
        assert ready, "no output within a minute"
        count -= collect(executor, outputs, max)


def run(executor: runtime.Executor, prompt: list[int], sampling: runtime.SamplingParams) -> Whole:
    """One request, to its end."""
    outputs: dict[int, Whole] = {}
    request = executor.submit(prompt, sampling)
    wait(executor, outputs, 1)
    return outputs[request]


def held(executor: runtime.Executor | BaseLLM) -> runtime.ExecutorStats:
    """Pauses it and waits until the step under way is over; → what it is like then, which stays so until a resume."""
    executor.pause()
    deadline = time.monotonic() + 60
    while (stats := executor.stats()).step_running_seconds > 0:
        assert time.monotonic() < deadline, "a step takes more than a minute"
    return stats


def mix(x: int) -> int:
    """SplitMix64's finalizer."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class CountingModel:
    """The settings of a counting backend that its logits depend on."""

    vocab_size: int
    levels: int = 1 << 20
    range: int = 0
    windows: tuple[int, ...] = (0,)

    def logits(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Its logits after `tokens`, from the tokens themselves."""
        state = 0
        for window in self.windows:
            for token in tokens[-window:]:
                state = mix(state ^ token)
        values = [mix((state + i) & MASK) % self.levels * 16 / self.levels for i in range(self.vocab_size)]
        if self.range > 0:
            values = [v if i // self.range == tokens[-1] // self.range else v - 200 for i, v in enumerate(values)]
        return np.array(values, np.float32)


def counting_logits(tokens: list[int], vocab_size: int, levels: int = 1 << 20) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The counting backend's logits after `tokens`, from the tokens themselves."""
    return CountingModel(vocab_size, levels).logits(tokens)


def counting_tokens(
    prompt: list[int], count: int, model: int | CountingModel, sampling: runtime.SamplingParams
) -> list[int]:
    """The first `count` tokens of a counting model's answer, without executor, pages or batches. `model`: its
    vocab_size will do."""
    model = CountingModel(model) if isinstance(model, int) else model
    tokens = list(prompt)
    for _ in range(count):
        seed = sampling.seed or 0
        logits = model.logits(tokens)
        tokens.append(runtime.sample(logits, sampling, runtime.random_bits(seed, 0, len(tokens)))[0])
    return tokens[len(prompt) :]
