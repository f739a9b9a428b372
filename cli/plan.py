"""`precast plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precast.cli.options import MemorySize, milliseconds, progress_bars, table

if TYPE_CHECKING:
    from precast.planning.kv_memory import KvMemory
    from precast.planning.prediction import Prediction
    from precast.planning.step_costs import Calibration

SHOWN_CANDIDATES = 8


@click.command("plan")
@click.argument("engine", type=click.Path(path_type=Path))
@click.option(
    "--workload",
    metavar="FILE|DISTRIBUTION",
    help="Requests to predict: a JSONL file, or like requests=200,rate=2,prompt=100..2000,output=200,prefix=0.7x1200.",
)
@click.option("--ttft", type=click.FloatRange(0, min_open=True), metavar="MS", help="Target: time to first token.")
@click.option(
    "--itl", type=click.FloatRange(0, min_open=True), metavar="MS", help="Target: mean time between a request's tokens."
)
@click.option("--max-batch-size", type=click.IntRange(1), help="Predict for this, instead of searching the best.")
@click.option("--max-num-tokens", type=click.IntRange(1), help="Predict for this, instead of searching the best.")
@click.option(
    "--scheduler-policy",
    type=click.Choice(["guaranteed_no_evict", "max_utilization", "static_batch"]),
    help="Predict for this, instead of searching the best.",
)
@click.option("--kv-cache-memory", type=MemorySize(), help="Memory for the KV cache. Default: what serving would take.")
@click.option(
    "--recalibrate", is_flag=True, help="Measure the step costs again, and say how far the stored ones are off."
)
@click.option(
    "--num-threads", type=click.IntRange(1, 1024), help="Threads to measure with. Default: what the machine gives."
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the prediction.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    engine: Path,
    workload: str | None,
    ttft: float | None,
    itl: float | None,
    max_batch_size: int | None,
    max_num_tokens: int | None,
    scheduler_policy: str | None,
    kv_cache_memory: int | None,
    recalibrate: bool,
    num_threads: int | None,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Tell what ENGINE can serve: its KV memory and, for a workload, the latencies to expect and the best settings.

    The workload runs through the runtime's own scheduler and KV cache in virtual time; a step takes what was measured
    when the engine was built, or is measured now with --recalibrate.

    \b
    Examples:
      precast plan engine --kv-cache-memory 2G
      precast plan engine --workload requests=200,rate=2,prompt=100..2000,output=200 --ttft 2000 --itl 100
      precast plan engine --workload requests.jsonl --recalibrate --json
    """
    given = {
        "max_batch_size": max_batch_size,
        "max_num_tokens": max_num_tokens,
        "scheduler_policy": scheduler_policy,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if workload is None and (options or ttft or itl or plot):
        raise click.UsageError("targets, settings and --plot are for a --workload; give one")
    if plot is not None and plot.suffix != ".svg":
        raise click.UsageError(f"--plot writes SVG; give a file like {plot.stem}.svg")
    from precast.planning.kv_memory import kv_memory, limits_of
    from precast.planning.prediction import Plan, Targets
    from precast.planning.step_costs import calibrate
    from precast.planning.workload import read_workload
    from precast.runtime.options import check_limits

    requests = None if workload is None else read_workload(workload)
    limits = limits_of(engine)
    if options:
        check_limits(options, limits)
        built = {"max_batch_size": limits.max_batch_size, "max_num_tokens": limits.max_num_tokens}
        options = built | {"scheduler_policy": "guaranteed_no_evict"} | options
    memory = kv_memory(engine, limits, kv_cache_memory)
    found: dict[str, Any] = {"kv_cache": asdict(memory)}
    if requests is None and not recalibrate:
        if as_json:
            click.echo(json.dumps(found, indent=2))
        else:
            _print_memory(memory)
        return 0
    with progress_bars() as progress:
        calibration = calibrate(engine, recalibrate, num_threads, progress)
        found["step_costs"] = asdict(calibration)
        predictions: list[Prediction] = []
        capacity = None
        if requests is not None:
            targets = Targets(None if ttft is None else ttft / 1e3, None if itl is None else itl / 1e3)
            plan = Plan(limits, calibration.costs, memory.pool_pages, requests, targets)
            predictions = [plan.predict(options)] if options else plan.search(progress)
            if ttft or itl:
                capacity = plan.capacity(predictions[0].options)
            if plot is not None:
                from precast.planning.plot import draw

                draw(plan, predictions[0], plot)
    found["predictions"] = [asdict(prediction) for prediction in predictions]
    found["capacity_requests_per_second"] = capacity
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return 0
    _print_memory(memory)
    _print_calibration(calibration)
    if predictions:
        _print_predictions(predictions, bool(options))
    if capacity is not None:
        click.echo(f"capacity: {capacity:.3g} requests per second, of which 95% meet the targets")
    elif requests is not None and (ttft or itl) and requests[-1].arrival > 0:
        click.echo("capacity: none; at no rate of arrivals do 95% of the requests meet the targets")
    return 0


def _print_memory(memory: KvMemory) -> None:
    click.echo(f"KV cache: {memory.bytes_per_token:,.0f} bytes a token = {memory.formula}")
    if any(memory.windows):
        windows = ", ".join(str(w) if w else "all positions" for w in memory.windows)
        click.echo(f"layer groups see: {windows}")
    click.echo(f"pool: {memory.pool_bytes / 1e6:,.1f} MB; a step runs {memory.max_batch_size} sequences at most")
    table(["tokens of a sequence", "sequences that fit"], [[f"{n:,}", f"{fit:,}"] for n, fit in memory.sequences])


def _print_calibration(calibration: Calibration) -> None:
    costs = calibration.costs
    when = "measured now" if calibration.measured_now else "measured at build"
    click.echo()
    click.echo(
        f"step costs: {when} on {costs.cpu}, {costs.threads} threads; within {costs.error:.1%} of mixed steps (median)"
    )
    if calibration.stored_error is not None:
        click.echo(f"the engine's stored step costs are off by {calibration.stored_error:.1%} (median)")
    for warning in calibration.warnings:
        click.echo(f"warning: {warning}", err=True)


def _print_predictions(predictions: list[Prediction], fixed: bool) -> None:
    click.echo()
    click.echo("prediction" if fixed else "best settings first")
    rows = []
    names = ("max_batch_size", "max_num_tokens", "scheduler_policy")
    for p in predictions[:SHOWN_CANDIDATES]:
        settings = [str(p.options[name]) for name in names]
        rates = [f"{p.output_tokens_per_second:,.1f}", f"{p.goodput:.3g}", f"{p.attainment:.0%}"]
        rows.append(
            settings
            + rates
            + [milliseconds(p.ttft.p50), milliseconds(p.ttft.p95), milliseconds(p.itl.p50), milliseconds(p.itl.p95)]
        )
    table(["batch", "tokens", "policy", "output tok/s", "goodput/s", "met", "TTFT p50", "p95", "ITL p50", "p95"], rows)
    best = predictions[0]
    click.echo()
    click.echo(
        f"{best.requests} requests in {best.makespan:,.1f} s; steps run {best.utilization:.0%} of it; at most "
        f"{best.peak_kv_tokens:,} tokens in the KV cache ({best.peak_kv_bytes / 1e6:,.1f} MB); {best.cached_tokens:,} "
        f"prompt tokens found cached; {best.pauses} pauses"
    )
