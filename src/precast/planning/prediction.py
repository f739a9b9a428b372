"""What a workload can expect, under given settings or the best ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from precast._native import runtime as native
from precast.planning.workload import Workload, refuse_unfit, to_native
from precast.progress import Progress, silent
from precast.runtime.calibration import StepCosts, powers_of_two

POLICIES = ("guaranteed_no_evict", "max_utilization")
ATTAINED = 0.95
"""The share of requests that must meet the targets at a rate that an engine is said to have the capacity for."""

CAPACITY_ROUNDS = 8

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Targets:
    """Seconds; None: any. A request meets them with its time to first token and with the mean of the times between its
    tokens."""

    ttft: float | None = None
    itl: float | None = None


@dataclass(frozen=True)
class Distribution:
    """Of times in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, times: F64) -> Distribution:
        """Zeros when there are none."""
        if times.size == 0:
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(float(times.mean()), *(float(p) for p in np.percentile(times, (50, 95, 99))))


@dataclass(frozen=True)
class Prediction:
    """A workload under some settings. Rates are per second of the makespan."""

    options: dict[str, Any]
    requests: int
    makespan: float
    output_tokens_per_second: float
    requests_per_second: float
    goodput: float
    """Requests per second that meet the targets."""
    attainment: float
    """The share of requests that do."""
    ttft: Distribution
    itl: Distribution
    queue: Distribution
    cached_tokens: int
    utilization: float
    """The share of the makespan in which steps run."""
    peak_kv_tokens: int
    peak_kv_bytes: int
    pauses: int


@dataclass(frozen=True)
class Plan:
    """What is simulated, but for the settings."""

    limits: native.ModelLimits
    costs: StepCosts
    num_pages: list[int]
    """Of each layer group."""
    workload: Workload
    targets: Targets

    def __post_init__(self) -> None:
        """Raises RequestError for a request that is too long for the engine."""
        refuse_unfit(self.workload, self.limits.max_seq_len)

    def predict(self, options: dict[str, Any], time_scale: float = 1.0) -> Prediction:
        """Raises RequestError when a request can never run, EngineError for options that cannot."""
        result = self.simulate(options, time_scale)
        arrivals = np.array([request.arrival for request in self.workload]) * time_scale
        times = [result.token_times(i) for i in range(len(self.workload))]
        ttft = result.first_tokens - arrivals
        mean_itl = np.array([float(np.diff(t).mean()) if len(t) > 1 else 0.0 for t in times])
        met = (ttft <= (self.targets.ttft or math.inf)) & (mean_itl <= (self.targets.itl or math.inf))
        span = max(result.makespan, 1e-9)
        page_bytes = [group.page_bytes for group in self.limits.groups]
        return Prediction(
            options=options,
            requests=len(times),
            makespan=result.makespan,
            output_tokens_per_second=sum(map(len, times)) / span,
            requests_per_second=len(times) / span,
            goodput=int(met.sum()) / span,
            attainment=float(met.mean()),
            ttft=Distribution.of(ttft),
            itl=Distribution.of(np.concatenate([np.diff(t) for t in times])),
            queue=Distribution.of(result.admitted - arrivals),
            cached_tokens=sum(result.cached_tokens),
            utilization=result.busy_seconds / span,
            peak_kv_tokens=result.peak_kv_tokens,
            peak_kv_bytes=sum(n * size for n, size in zip(result.peak_pages, page_bytes, strict=True)),
            pauses=result.pauses,
        )

    def simulate(
        self, options: dict[str, Any], time_scale: float = 1.0, record_steps: bool = False
    ) -> native.Simulated:
        """As `predict`, whole."""
        return native.simulate(
            self._unscaled if time_scale == 1 else to_native(self.workload, time_scale),
            self.limits,
            self.costs.native(),
            num_pages=self.num_pages,
            record_steps=record_steps,
            **options,
        )

    @cached_property
    def _unscaled(self) -> native.Workload:
        return to_native(self.workload)

    def candidates(self) -> Iterator[dict[str, Any]]:
        """Settings to try: powers of two within the engine's limits, and these."""
        for batch in powers_of_two(1, self.limits.max_batch_size):
            for tokens in powers_of_two(self.limits.page_tokens, self.limits.max_num_tokens):
                if tokens < batch + self.limits.page_tokens - 1 and tokens != self.limits.max_num_tokens:
                    continue
                for policy in POLICIES:
                    yield {"max_batch_size": batch, "max_num_tokens": tokens, "scheduler_policy": policy}

    def search(self, progress: Progress = silent) -> list[Prediction]:
        """All candidates, the best first: most goodput, most throughput, the shortest TTFT, the largest settings."""
        every = list(self.candidates())
        predictions = []
        for done, options in enumerate(every):
            progress("simulate", done, len(every))
            predictions.append(self.predict(options))
        progress("simulate", len(every), len(every))
        return sorted(predictions, key=_rank)

    def capacity(self, options: dict[str, Any]) -> float | None:
        """The highest rate of arrivals, in requests per second, at which ATTAINED of the requests meet the targets.

        The workload's arrivals are stretched or compressed for it. None: no rate does, or all arrive at once.
        """
        last = self.workload[-1].arrival
        if last == 0:
            return None
        rate = len(self.workload) / last
        low, high = 0.0, math.inf
        factor = 1.0
        for _ in range(CAPACITY_ROUNDS):
            if self.predict(options, 1 / factor).attainment >= ATTAINED:
                low = factor
                factor = factor * 2 if math.isinf(high) else (low + high) / 2
            else:
                high = factor
                factor = factor / 2 if low == 0 else (low + high) / 2
        return rate * low if low > 0 else None


def _rank(prediction: Prediction) -> tuple[float, ...]:
    """Small differences do not count; of settings that do equally well, the largest have the most in reserve."""

    def rough(value: float, digits: int) -> float:
        return float(f"{value:.{digits}g}")

    return (
        -rough(prediction.goodput, 3),
        -rough(prediction.output_tokens_per_second, 2),
        rough(prediction.ttft.p95, 2),
        -prediction.options["max_batch_size"],
        -prediction.options["max_num_tokens"],
    )
