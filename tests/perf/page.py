"""What speed.py found: as one page of text, as values, and as a drawing."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.benchmark import roofline
from precast.builder.build import cpu_model
from tests.perf import machine
from tests.perf.cases import BF16, BF16_CASES, KV_INT8, OURS, PEER, PIECE, Case, Measured

if TYPE_CHECKING:
    from tests.perf.speed import Run


def text(run: Run, reasons: list[str]) -> str:
    """The page; `reasons` are those for which it is void."""
    blocks = ["\n".join(_head(run, reasons)), _table(run)]
    if BF16 in run.engines:
        blocks.append(_bf16(run))
    if KV_INT8 in run.engines:
        blocks.append(_kv_int8(run))
    return "\n\n".join(blocks)


def _head(run: Run, reasons: list[str]) -> list[str]:
    given, about = run.given, run.peer.about
    attributes = run.engines[OURS].work.plan.attributes
    lines = ["VOID: " + "; ".join(reasons)] if reasons else []
    lines += [
        f"{given.engine.name} beside {Path(given.peer).name}; medians of {given.rounds} interleaved rounds",
        f"machine: {_cpu()}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()} {platform.release()}; "
        f"{run.watch.summary()}",
        f"engine: {given.threads} threads, ISA level {attributes['isa']}, K/V in {attributes['kv_cache_dtype']}, "
        f"weights {'mapped' if given.weights_memory == 'map' else 'copied into huge pages'}",
        f"llama.cpp: {_peer(about)}; flash attention on, K/V in f16, {PIECE} tokens a batch; {_threads(run)}",
    ]
    if run.limits:
        lines.append(f"limits: {_limits(run)}")
    lines += [
        "engine's times: through its executor, alone, random tokens; a prompt from submission to first token, a decode "
        "step from the end of the one before, with scheduling and greedy sampling. llama.cpp's: llama_decode alone.",
        "share: what the step must take on this machine, T = max((weights + scales + K/V bytes) / read limit, "
        "operations / limit of their dtype), of what it takes; at the higher limits of two probes around it; norms, "
        "activations, rope and sampling count nothing",
        f"prompts above {PIECE} tokens: in pieces of {PIECE}, each measured once",
    ]
    return lines


def _cpu() -> str:
    found = machine.this_cpu()
    return cpu_model() + (f" (family {found.family}, model {found.model})" if found else "")


def _peer(about: dict[str, Any]) -> str:
    version = f"llama-cpp-python {about['version']}"
    if "ggml_version" in about:
        version += f" with ggml {about['ggml_version']} ({about.get('ggml_commit', '?')})"
    return f"{version}, {about['flags']}"


def _threads(run: Run) -> str:
    parts = []
    for what, rates in run.peer_threads.items():
        best = max(rates, key=lambda threads: rates[threads])
        tried = ", ".join(f"{threads}: {rate:.1f}" for threads, rate in rates.items())
        parts.append(f"{best} thread{'s' if best > 1 else ''} for {what} (tokens/s by threads: {tried})")
    return ", ".join(parts) or "threads not chosen yet"


def _limits(run: Run) -> str:
    best, below = machine.highest(run.limits), machine.spread(run.limits)
    parts = [f"reads {best.read_bytes / 1e9:.1f} GB/s (lowest of the probes −{below['read_bytes']:.0%})"]
    for name, dtype in (("i8_ops", "int8"), ("bf16_ops", "bf16"), ("f32_ops", "f32")):
        parts.append(f"{getattr(best, name) / 1e9:,.0f} GOPS of {dtype} (−{below[name]:.0%})")
    known = machine.known_limits(machine.this_cpu(), run.given.threads)
    if known is None:
        beside = "none known of this CPU"
    else:
        lower = machine.lower_than_known(best, known)
        beside = f"those known of {known.cpu} are {'not ' if lower else ''}reached"
    return ", ".join(parts) + f" at most in {len(run.limits)} probes; {beside}"


def _table(run: Run) -> str:
    rows = []
    for case in run.cases:
        if (ours := run.found.get((OURS, case))) is not None:
            rows.append([case.name, _rate(ours), _share(ours), *_beside(ours, run.found.get((PEER, case)))])
    return _markdown(["", "tokens/s", "of the bound", "llama.cpp", "ratio (min to max)"], rows) + _fall(run)


def _fall(run: Run) -> str:
    short, long = (run.found.get((OURS, Case(prompt=n))) for n in (512, 4096))
    return f"\n\nprefill of 4,096 at {long.rate / short.rate:.0%} of the rate of 512" if short and long else ""


def _bf16(run: Run) -> str:
    rows = [
        [case.name, _rate(found), _share(found)]
        for case in BF16_CASES
        if (found := run.found.get((BF16, case))) is not None
    ]
    return _markdown(["bf16 weights", "tokens/s", "of the bound"], rows)


def _kv_int8(run: Run) -> str:
    rows = []
    for case in run.cases:
        base, found = run.found.get((OURS, case)), run.found.get((KV_INT8, case))
        if base is not None and found is not None:
            rows.append([case.name, _rate(found), _share(found), *_beside(found, base)])
    return _markdown(["K/V in int8", "tokens/s", "of the bound", "the engine above", "ratio (min to max)"], rows)


def _rate(found: Measured) -> str:
    return f"{found.rate:.1f}" if found.rate < 100 else f"{found.rate:.0f}"


def _share(found: Measured) -> str:
    share = found.share
    return "?" if share is None else f"{share:.0%}"


def _beside(found: Measured, other: Measured | None) -> list[str]:
    if other is None:
        return ["–", "–"]
    ratios = [a / b for a, b in zip(found.rates, other.rates, strict=False)]
    between = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
    return [_rate(other), f"{found.rate / other.rate:.2f}{between}"]


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def values(run: Run, reasons: list[str]) -> dict[str, Any]:
    """All that was measured, in seconds and per second."""
    return {
        "void": reasons,
        "machine": {"cpu": _cpu(), "cpus": len(os.sched_getaffinity(0)), "system": platform.release()},
        "num_threads": run.given.threads,
        "others": run.watch.others,
        "disturbed": run.watch.disturbed,
        "limits_per_second": [asdict(found) for found in run.limits],
        "llama_cpp": run.peer.about | {"tokens_per_second_by_threads": run.peer_threads},
        "measured": [
            {
                "what": name,
                "case": case.name,
                "tokens": case.tokens,
                "rounds": found.rounds,
                "tokens_per_second": found.rate,
                "of_the_bound": found.share,
                "limits_per_second": [asdict(limits) for limits in found.limits],
                "work": [asdict(step) for step in found.work],
            }
            for (name, case), found in run.found.items()
        ],
    }


def draw(run: Run, path: Path) -> None:
    """The engine's steps under the machine's limits. Raises PrecastError when it cannot be written."""
    steps = []
    for (name, case), found in run.found.items():
        if name in (OURS, BF16) and found.work:
            label = case.name if name == OURS else f"{case.name}, bf16"
            steps.append(roofline.Step(label, found.work, found.seconds))
    roofline.draw(steps, machine.highest(run.limits), path)
