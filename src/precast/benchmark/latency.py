"""Prefill over prompt lengths, decode over batch sizes and contexts: each alone on the engine, in rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from precast.benchmark.bound import StepWork
from precast.benchmark.subject import Subject
from precast.builder.machine_limits import Limits, Work
from precast.errors import PrecastError
from precast.progress import Progress, silent

PROMPT_TOKENS, BATCH_SIZES, CONTEXTS = (128, 512, 2048), (1, 4, 16), (128, 1024)
"""What is measured unless told, as far as the engine goes."""

DECODE_STEPS = 24
"""Of each round; the first of them, which still runs prompts or follows such a step, does not count."""

ROUNDS = 3


@dataclass(frozen=True)
class Prefill:
    """One prompt, from its submission to its first token."""

    prompt_tokens: int
    seconds: list[float] = field(default_factory=list)
    """Of each round."""
    bound: float | None = None
    """Seconds that it must take on this machine (`bound.py`); None: not known."""

    @property
    def median(self) -> float:
        """Seconds: the time to first token."""
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.prompt_tokens / self.median


@dataclass(frozen=True)
class Decode:
    """Steps that decode a whole batch, each from the end of the step before to its own end."""

    batch_size: int
    context: int
    """Tokens that each sequence has before the first of these steps."""
    seconds: list[float] = field(default_factory=list)
    """Of each step."""
    bound: float | None = None
    """Seconds that such a step must take on this machine."""

    @property
    def median(self) -> float:
        """Seconds: the inter-token latency."""
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return self.batch_size / self.median


@dataclass(frozen=True)
class Latency:
    """What was measured, and with how many threads."""

    num_threads: int
    limits: Limits
    """The machine's, measured in the same run."""
    prefill: list[Prefill]
    decode: list[Decode]

    def to_json(self) -> dict[str, Any]:
        """Plain values: medians and rates, with all that they are medians of."""
        return {
            "num_threads": self.num_threads,
            "limits_per_second": asdict(self.limits),
            "prefill": [
                {
                    "prompt_tokens": p.prompt_tokens,
                    "ttft": p.median,
                    "tokens_per_second": p.tokens_per_second,
                    "seconds": p.seconds,
                    "bound": p.bound,
                }
                for p in self.prefill
            ],
            "decode": [
                {
                    "batch_size": d.batch_size,
                    "context": d.context,
                    "itl": d.median,
                    "tokens_per_second": d.tokens_per_second,
                    "seconds": d.seconds,
                    "bound": d.bound,
                }
                for d in self.decode
            ],
        }


def measure(
    engine: Path,
    prompt_tokens: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    rounds: int = ROUNDS,
    num_threads: int | None = None,
    progress: Progress = silent,
) -> Latency:
    """None: the usual ones that the engine holds. Raises PrecastError for those that it does not hold, EngineError."""
    with Subject(engine, num_threads) as subject:
        longest, widest = subject.limits.max_seq_len - DECODE_STEPS - 1, subject.limits.max_batch_size
        prefill = [Prefill(n) for n in _chosen(prompt_tokens, PROMPT_TOKENS, longest, "prompt of {} tokens")]
        decode = [
            Decode(batch, context)
            for context in _chosen(contexts, CONTEXTS, longest, "context of {} tokens")
            for batch in _chosen(batch_sizes, BATCH_SIZES, widest, "batch of {}")
        ]
        # Computed once: later rounds, and larger batches, find them in the prefix cache.
        most = max((d.batch_size for d in decode), default=0)
        prompts = {d.context: [subject.tokens(d.context) for _ in range(most)] for d in decode}
        limits = Limits()
        done, total = 0, (len(prefill) + len(decode)) * rounds
        for _ in range(rounds):
            limits = limits.or_higher(subject.num_threads)
            for p in prefill:
                progress("measure", done, total)
                (output,) = subject.run([subject.tokens(p.prompt_tokens)], 1)
                p.seconds.append(output.first_token_seconds)
                done += 1
            for d in decode:
                progress("measure", done, total)
                d.seconds.extend(decode_steps(subject, prompts[d.context][: d.batch_size]))
                done += 1
        progress("measure", total, total)
        work = StepWork(engine)
        if work.is_known:
            prefill = [replace(p, bound=prefill_bound(work, limits, p, subject.limits.max_num_tokens)) for p in prefill]
            decode = [replace(d, bound=decode_bound(work, limits, d)) for d in decode]
        return Latency(subject.num_threads, limits, prefill, decode)


def prefill_bound(work: StepWork, limits: Limits, prefill: Prefill, step_tokens: int) -> float:
    """Seconds of a prompt in steps of step_tokens."""
    return sum(step.seconds(limits) for step in prefill_work(work, prefill.prompt_tokens, step_tokens))


def prefill_work(work: StepWork, prompt_tokens: int, step_tokens: int) -> list[Work]:
    """Of the steps of a prompt."""
    steps = range(0, prompt_tokens, step_tokens)
    return [work.of([(min(step_tokens, prompt_tokens - before), before)]) for before in steps]


def decode_bound(work: StepWork, limits: Limits, decode: Decode) -> float:
    """Seconds of a step."""
    return decode_work(work, decode.batch_size, decode.context).seconds(limits)


def decode_work(work: StepWork, batch_size: int, context: int, steps: int = DECODE_STEPS) -> Work:
    """Of the middle one of `steps` steps that begin with `context` tokens in each sequence."""
    return work.of([(1, context + steps // 2)] * batch_size)


def decode_steps(subject: Subject, prompts: list[list[int]], steps: int = DECODE_STEPS) -> list[float]:
    """Seconds of the steps in which all of `prompts` decode, those before which they did not left out."""
    subject.steps()
    subject.run(prompts, steps + 1)
    times = []
    for before, step in pairwise(subject.steps()):
        counts = [s.inflight_batching_stats for s in (before, step)]
        if all(c.num_gen_requests == len(prompts) and c.num_context_requests == 0 for c in counts):
            times.append(step.timestamp - before.timestamp)
    return times


def _chosen(given: Sequence[int] | None, usual: Sequence[int], most: int, what: str) -> list[int]:
    if given is None:
        return [n for n in usual if n <= most] or [most]
    for n in given:
        if not 1 <= n <= most:
            raise PrecastError(f"a {what.format(n)} cannot be measured with this engine; it takes 1 … {most}")
    return list(given)
