"""What is measured of an engine and of what stands beside it, and what was found."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from precast.builder.machine_limits import Limits, Work

SHORT = 64
"""Tokens of each sequence before the first step that is measured."""

PIECE = 512
"""The long prompt is measured in pieces of as many tokens, each once: they need less idle time at a stretch."""

OURS, PEER, BF16, KV_INT8 = "engine", "llama.cpp", "bf16", "K/V in int8"


@dataclass(frozen=True)
class Case:
    """A prompt, or steps that decode `batch` sequences behind `context` tokens each."""

    prompt: int = 0
    batch: int = 1
    context: int = 0

    @property
    def name(self) -> str:
        return f"prefill {self.prompt:,}" if self.prompt else f"decode × {self.batch} at {self.context:,}"

    @property
    def tokens(self) -> int:
        """That a measurement's seconds bring."""
        return self.prompt or self.batch


CASES = (
    Case(prompt=512),
    Case(prompt=4096),
    *(Case(batch=n, context=SHORT) for n in (1, 4, 16, 32)),
    Case(context=2048),
    Case(context=4096),
)
BF16_CASES = (Case(prompt=512), Case(context=SHORT))


@dataclass
class Measured:
    """One case of one of those that are compared."""

    case: Case
    rounds: list[list[float]] = field(default_factory=list)
    """Seconds: of prompts, or of steps."""
    work: list[Work] = field(default_factory=list)
    """Of the steps that these are the seconds of; empty: not known."""
    limits: list[Limits] = field(default_factory=list)
    """Of the machine around each round."""

    @property
    def seconds(self) -> float:
        """The median of the rounds' medians."""
        return statistics.median(map(statistics.median, self.rounds))

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each round."""
        return [self.case.tokens / statistics.median(seconds) for seconds in self.rounds]

    @property
    def rate(self) -> float:
        return self.case.tokens / self.seconds

    @property
    def share(self) -> float | None:
        """Of the time: what it must take on this machine. The median of the rounds, each at its own limits: on shared
        machines others take a part of the memory's bandwidth, now more and now less."""
        shares = [
            sum(step.seconds(limits) for step in self.work) / statistics.median(seconds)
            for limits, seconds in zip(self.limits, self.rounds, strict=False)
        ]
        return statistics.median(shares) if self.work and shares else None
