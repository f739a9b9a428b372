"""`precast bench`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precast.cli.options import MemorySize, milliseconds, progress_bars, table

if TYPE_CHECKING:
    from precast.builder.machine_limits import Limits


class Counts(click.ParamType):  # type: ignore[type-arg] # as MemorySize
    """Whole numbers: 1,4,16."""

    name = "n,n,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            counts = [int(part) for part in str(value).split(",")]
        except ValueError:
            counts = []
        if not counts or min(counts) < 1:
            self.fail(f"{value!r} is not a list of numbers from 1 on, like 1,4,16", param, ctx)
        return counts


@click.group("bench")
def command() -> None:
    """Measure an engine.

    \b
    Examples:
      precast bench latency engine
      precast bench throughput engine --workload requests=64,prompt=100..1000,output=50..200
      precast bench profile engine --batch-size 16
    """


_engine = click.argument("engine", type=click.Path(path_type=Path))
_threads = click.option("--num-threads", type=click.IntRange(1, 1024), help="Threads. Default: what the machine gives.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("latency")
@_engine
@click.option("--prompt-tokens", type=Counts(), help="Prompts to prefill, e.g. 128,512,2048 (the default).")
@click.option("--batch-size", "batch_sizes", type=Counts(), help="Sequences to decode, e.g. 1,4,16 (the default).")
@click.option("--context", "contexts", type=Counts(), help="Tokens before each of them, e.g. 128,1024 (the default).")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Interleaved rounds.")
@_threads
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw it.")
@_json
def latency(
    engine: Path,
    prompt_tokens: list[int] | None,
    batch_sizes: list[int] | None,
    contexts: list[int] | None,
    rounds: int,
    num_threads: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure prefill over prompt lengths, and decode over batch sizes and contexts, of ENGINE alone.

    Prompts are random tokens. Times to first token run from the submission; decode steps from the end of one to the
    end of the next, with all that lies between. Medians over all rounds. "of the limit": how long reading the weights
    and the K/V, or computing the products, must take on this machine, whichever is longer, as a share of the time.

    \b
    Examples:
      precast bench latency engine
      precast bench latency engine --prompt-tokens 512 --batch-size 1,2,4,8,16,32 --context 1024 --json
    """
    if plot is not None and plot.suffix != ".svg":
        raise click.UsageError(f"--plot writes SVG; give a file like {plot.stem}.svg")
    from precast.benchmark.latency import measure

    with progress_bars() as progress:
        found = measure(engine, prompt_tokens, batch_sizes, contexts, rounds, num_threads, progress)
    if plot is not None:
        from precast.benchmark.plot import draw

        draw(found, plot)
    if as_json:
        click.echo(json.dumps(_machine() | found.to_json(), indent=2))
        return
    _print_machine(found.num_threads)
    _print_limits(found.limits)
    click.echo()
    table(
        ["prefill: tokens", "TTFT", "tokens/s", "of the limit"],
        [[f"{p.prompt_tokens:,}", *_rates(p.median, p.tokens_per_second, p.bound)] for p in found.prefill],
    )
    click.echo()
    table(
        ["decode: sequences", "context", "ITL", "tokens/s", "of the limit"],
        [[str(d.batch_size), f"{d.context:,}", *_rates(d.median, d.tokens_per_second, d.bound)] for d in found.decode],
    )


def _rates(seconds: float, tokens_per_second: float, bound: float | None) -> list[str]:
    return [milliseconds(seconds), f"{tokens_per_second:,.1f}", "?" if bound is None else f"{bound / seconds:.0%}"]


@command.command("throughput")
@_engine
@click.option(
    "--workload",
    metavar="FILE|DISTRIBUTION",
    default="requests=32,prompt=50..500,output=50..200",
    show_default=True,
    help="Requests: a JSONL file, or a distribution; with rate=…, they arrive one by one. See docs/planning.md.",
)
@click.option("--max-batch-size", type=click.IntRange(1), help="Sequences of a step. Default: the engine's limit.")
@click.option("--max-num-tokens", type=click.IntRange(1), help="Tokens of a step. Default: the engine's limit.")
@click.option(
    "--scheduler-policy",
    type=click.Choice(["guaranteed_no_evict", "max_utilization", "static_batch"]),
    help="Default: guaranteed_no_evict.",
)
@click.option("--kv-cache-memory", type=MemorySize(), help="Memory for the KV cache. Default: what serving would take.")
@_threads
@_json
def throughput(
    engine: Path,
    workload: str,
    num_threads: int | None,
    kv_cache_memory: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a workload of random tokens through ENGINE, as fast as it goes or as its requests arrive.

    Beside the rate stands what the step costs that were measured at build predict for the same workload.

    \b
    Examples:
      precast bench throughput engine
      precast bench throughput engine --workload requests=100,rate=2,prompt=100..2000,output=200,prefix=0.7x1200
      precast bench throughput engine --workload requests.jsonl --scheduler-policy max_utilization --json
    """
    from precast.benchmark.throughput import measure
    from precast.planning.workload import read_workload

    requests = read_workload(workload)
    options = {name: value for name, value in given.items() if value is not None}
    with progress_bars() as progress:
        found = measure(engine, requests, num_threads, kv_cache_memory, options, progress)
    if as_json:
        click.echo(json.dumps(_machine() | asdict(found), indent=2))
        return
    _print_machine(found.num_threads)
    click.echo(
        f"{found.requests} requests, {found.prompt_tokens:,} prompt tokens ({found.cached_tokens:,} found cached), "
        f"{found.output_tokens:,} output tokens in {found.makespan:,.1f} s; {found.pauses} pauses"
    )
    beside = ""
    if found.predicted_output_tokens_per_second is not None:
        share = found.output_tokens_per_second / found.predicted_output_tokens_per_second
        beside = f", {share:.0%} of what the step costs predict"
    click.echo(
        f"{found.output_tokens_per_second:,.1f} output tokens/s{beside}; {found.requests_per_second:.3g} requests/s"
    )
    times = [
        [name, *map(milliseconds, (d.mean, d.p50, d.p95, d.p99))]
        for name, d in (("TTFT", found.ttft), ("ITL", found.itl))
    ]
    table(["", "mean", "p50", "p95", "p99"], times)


@command.command("profile")
@_engine
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Sequences of the step.")
@click.option("--rows", type=click.IntRange(1), default=1, show_default=True, help="New tokens of each sequence.")
@click.option("--context", type=click.IntRange(0), default=128, show_default=True, help="Tokens before them.")
@_threads
@_json
def profile(engine: Path, batch_size: int, rows: int, context: int, num_threads: int | None, as_json: bool) -> None:
    """Measure each op of a step of ENGINE: where its time goes.

    Medians of 20 steps; ops of all layers are added up. "of the limit": as `bench latency` tells, of linears and
    attention. Sampling, scheduling and text are not part of it.

    \b
    Examples:
      precast bench profile engine                            # a decode step of one sequence
      precast bench profile engine --batch-size 16 --context 1024
      precast bench profile engine --rows 512 --context 0     # prefill
    """
    from precast.benchmark.profile import profile as measure

    with progress_bars() as progress:
        found = measure(engine, batch_size, rows, context, num_threads, progress)
    if as_json:
        click.echo(json.dumps(_machine() | {"seconds": found.seconds} | asdict(found), indent=2))
        return
    _print_machine(found.num_threads)
    _print_limits(found.limits)
    tokens = f"{found.batch_size} x {found.rows} tokens behind {found.context:,}"
    click.echo(f"{tokens}: {milliseconds(found.seconds)}")
    click.echo()
    table(
        ["op", "", "calls", "time", "of the step", "of the limit"],
        [
            [
                op.name,
                " ".join((op.kernel, op.shape)).strip(),
                str(op.calls),
                milliseconds(op.seconds),
                f"{op.seconds / found.seconds:.1%}",
                "" if op.bound is None else f"{op.bound / op.seconds:.0%}",
            ]
            for op in found.ops
        ],
    )


def _machine() -> dict[str, Any]:
    from precast.builder.build import cpu_model

    return {"cpu": cpu_model(), "cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}


def _print_machine(num_threads: int) -> None:
    found = _machine()
    click.echo(f"{found['cpu']}, {found['cpus']} CPUs, load {found['load']:.1f}; {num_threads} threads")


def _print_limits(limits: Limits) -> None:
    click.echo(
        f"limits: reads {limits.read_bytes / 1e9:.1f} GB/s; computes {limits.i8_ops / 1e9:,.0f} GOPS of int8, "
        f"{limits.bf16_ops / 1e9:,.0f} of bf16, {limits.f32_ops / 1e9:,.0f} of f32"
    )
