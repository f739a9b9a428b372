"""A workload through an engine, offline or as its requests arrive, beside what the step costs predict for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from precast.benchmark.subject import Subject
from precast.planning.prediction import Distribution, Plan, Targets
from precast.planning.step_costs import stored_costs
from precast.planning.workload import Workload, WorkloadRequest, refuse_unfit
from precast.progress import Progress, silent


@dataclass(frozen=True)
class Throughput:
    """A workload's run. Times in seconds; rates per second of the makespan."""

    num_threads: int
    requests: int
    makespan: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    ttft: Distribution
    itl: Distribution
    cached_tokens: int
    pauses: int
    predicted_output_tokens_per_second: float | None = None
    """By the engine's step costs; None: it has none."""


def measure(
    engine: Path,
    workload: Workload,
    num_threads: int | None = None,
    kv_cache_memory: int | None = None,
    options: dict[str, Any] | None = None,
    progress: Progress = silent,
) -> Throughput:
    """`options`: the scheduler's. Raises EngineError, PrecastError for a request that the engine does not hold."""
    options = options or {}
    with Subject(engine, num_threads, kv_cache_memory, **options) as subject:
        refuse_unfit(workload, subject.limits.max_seq_len)
        found = run_workload(subject, workload, progress)
        if (costs := stored_costs(engine)) is not None:
            plan = Plan(subject.limits, costs, subject.pages, workload, Targets())
            found = replace(found, predicted_output_tokens_per_second=plan.predict(options).output_tokens_per_second)
        return found


def run_workload(subject: Subject, workload: Workload, progress: Progress = silent) -> Throughput:
    """Submits every request when it arrives; returns when the last is finished."""
    prompts = _prompts(subject, workload)
    pauses = subject.executor.stats().pauses
    arrivals: dict[int, float] = {}
    times: dict[int, list[float]] = {}
    cached = finished = 0
    start = time.perf_counter()
    progress("measure", 0, len(workload))
    while finished < len(workload):
        now = time.perf_counter() - start
        while len(times) < len(workload) and workload[len(times)].arrival <= now:
            request = workload[len(times)]
            number = subject.submit(
                prompts[len(times)], request.output_tokens, priority=request.priority, cache_salt=request.cache_salt
            )
            arrivals[number], times[number] = request.arrival, []
        wait = workload[len(times)].arrival - now if len(times) < len(workload) else 60.0
        for delta in subject.wait(wait):
            times[delta.id] += [time.perf_counter() - start] * len(delta.token_ids)
            if delta.finished:
                finished += 1
                cached += delta.cached_tokens
                progress("measure", finished, len(workload))
    makespan = time.perf_counter() - start
    tokens = sum(map(len, times.values()))
    return Throughput(
        num_threads=subject.num_threads,
        requests=len(workload),
        makespan=makespan,
        prompt_tokens=sum(map(len, prompts)),
        output_tokens=tokens,
        output_tokens_per_second=tokens / makespan,
        requests_per_second=len(workload) / makespan,
        ttft=Distribution.of(np.array([own[0] - arrivals[number] for number, own in times.items()])),
        itl=Distribution.of(np.concatenate([np.diff(own) for own in times.values()])),
        cached_tokens=cached,
        pauses=subject.executor.stats().pauses - pauses,
    )


def _prompts(subject: Subject, workload: Workload) -> list[list[int]]:
    longest: dict[int, int] = {}
    for request in workload:
        longest[request.prefix] = max(longest.get(request.prefix, 0), request.shared_prefix_tokens)
    prefixes = {prefix: subject.tokens(length) for prefix, length in longest.items()}

    def prompt(request: WorkloadRequest) -> list[int]:
        if request.prompt_token_ids is not None:
            return list(request.prompt_token_ids)
        shared = prefixes[request.prefix][: request.shared_prefix_tokens]
        return shared + subject.tokens(request.prompt_tokens - len(shared))

    return [prompt(request) for request in workload]
