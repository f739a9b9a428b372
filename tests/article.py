"""The cost model of a public article about continuous batching, and its figures for tests/workloads/mixed240.jsonl.

There a step is the unit of time; each of 64 slots prefills up to 200 tokens of its prompt or decodes one token in it,
whatever the others do. A request's first token comes with the first decode step behind its prefill, while our prefill
gives it with its last step: so its output of n tokens are n + 1 of ours, and its time to first token is ours + 1. Where
the cache holds the whole prompt it has no prefill step at all, and ours the one token that is always computed, which is
the article's first decode step: nothing is added there. In its static batches prompts are padded to the longest, so all
first tokens come when the last prompt is computed. Its peak of
the KV cache counts prompts alone, as soon as they enter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precast._native import runtime as native

WORKLOAD = Path(__file__).parent / "workloads" / "mixed240.jsonl"
SLOTS, CHUNK = 64, 200
PAGE_TOKENS = 8
"""Of which 200 and the prefix's 1,200 tokens are multiples."""

ONE_STEP = [(1.0, 1.0), (2.0, 1.0)]
"""Seconds by rows: every step takes one."""


@dataclass(frozen=True)
class Figures:
    """In steps."""

    ttft_mean: float
    ttft_p95: float
    makespan: float
    peak_prompt_tokens: int
    """Most tokens that the prompts of running requests have."""


def requests() -> list[dict[str, int]]:
    """The workload's lines."""
    return [json.loads(line) for line in WORKLOAD.read_text().splitlines()]


def limits(max_num_tokens: int = SLOTS * CHUNK, slots: int = SLOTS) -> native.ModelLimits:
    """Of a model that takes the whole workload."""
    return native.CountingBackend(
        max_batch_size=slots, max_num_tokens=max_num_tokens, max_seq_len=1 << 16, page_tokens=PAGE_TOKENS
    ).limits


def simulate(first_alone: list[bool], cost: native.StepCost | None = None, **options: Any) -> native.Simulated:
    """The workload through our scheduler; `first_alone`: of each request, whether the article's first token is one more
    step."""
    workload = native.Workload()
    for request, alone in zip(requests(), first_alone, strict=True):
        workload.add(
            request["arrival_step"],
            request["prompt_tokens"],
            request["output_tokens"] + alone,
            shared_prefix_tokens=request["shared_prefix_tokens"],
        )
    given = {"num_pages": 1 << 16, "max_chunk_tokens": CHUNK, "limits": limits()} | options
    chosen = given.pop("limits")
    return native.simulate(workload, chosen, cost or native.StepCost(rows=ONE_STEP), **given)


def figures(result: native.Simulated, first_alone: list[bool], padded: bool = False) -> Figures:
    """What the article would report of a simulation."""
    arrivals = np.array([r["arrival_step"] for r in requests()])
    first = result.first_tokens + np.array(first_alone)
    if padded:
        for batch in np.unique(result.admitted):
            together = result.admitted == batch
            first[together] = result.first_tokens[together].max()
    ttft = np.sort(first - arrivals)
    p95 = ttft[int(0.95 * len(ttft))]
    return Figures(float(ttft.mean()), float(p95), result.makespan, _peak_prompt_tokens(result))


def _peak_prompt_tokens(result: native.Simulated) -> int:
    prompts = np.array([r["prompt_tokens"] for r in requests()])
    changes = np.zeros(int(result.makespan) + 1, np.int64)
    np.add.at(changes, result.admitted.astype(int), prompts)
    np.add.at(changes, result.finished.astype(int), -prompts)
    return int(changes.cumsum().max())


def static() -> Figures:
    """Static batches of 64 in order of arrival."""
    alone = [True] * len(requests())
    options = {"scheduler_policy": "static_batch", "gather": SLOTS, "enable_prefix_caching": False}
    return figures(simulate(alone, **options), alone, padded=True)


def continuous() -> Figures:
    """Whoever comes enters when a slot is free."""
    alone = [True] * len(requests())
    return figures(simulate(alone, enable_prefix_caching=False), alone)


def prefix_cache() -> Figures:
    """The same with the prefix cache."""
    found = simulate([True] * len(requests())).cached_tokens
    alone = [r["prompt_tokens"] - cached > 1 for r, cached in zip(requests(), found, strict=True)]
    return figures(simulate(alone), alone)


def padding() -> float:
    """The share of the static batches' prefill that is padding."""
    chunks = [-(-r["prompt_tokens"] // CHUNK) for r in requests()]
    batches = [chunks[i : i + SLOTS] for i in range(0, len(chunks), SLOTS)]
    return 1 - sum(chunks) / (SLOTS * sum(max(batch) for batch in batches))


def shared_budget(tokens: int, **options: Any) -> Figures:
    """The workload as it would be served here: prompts share what decode leaves of `tokens` rows a step."""
    ours = [False] * len(requests())
    return figures(simulate(ours, limits=limits(max_num_tokens=tokens), max_chunk_tokens=0, **options), ours)


def main() -> None:
    """Prints the tables of docs/planning.md."""
    tables = [("static", static()), ("continuous", continuous()), ("prefix cache", prefix_cache())]
    for tokens in (256, 512, 1024):
        tables.append((f"one budget of {tokens}", shared_budget(tokens)))
    tight = {"num_pages": 24000 // PAGE_TOKENS}
    for name, options in {
        "static_batch": {"scheduler_policy": "static_batch", "gather": SLOTS},
        "no prefix cache": {"enable_prefix_caching": False},
        "equal_progress": {"prefill_order": "equal_progress"},
        "cache_aware": {"request_order": "cache_aware"},
        "24,000 tokens of KV, guaranteed_no_evict": tight,
        "24,000 tokens of KV, max_utilization": tight | {"scheduler_policy": "max_utilization"},
    }.items():
        tables.append((f"512, {name}", shared_budget(512, **options)))
    for name, of in tables:
        print(f"| {name} | {of.ttft_mean:.1f} | {of.ttft_p95:.0f} | {of.makespan:.0f} | {of.peak_prompt_tokens} |")
    print(f"padding {padding():.4f}")


if __name__ == "__main__":
    main()
