"""Predicted and measured: workloads through `precast plan`'s simulation and through the executor, in one run.

    python tests/perf/plan_against_reality.py ENGINE [--threads N] [--runs 1] [--workload FILE|DISTRIBUTION …]

Without `--workload`: three that differ in arrivals, lengths and sharing. For each workload the step costs are measured
again, the workload is predicted and run, and they are measured once more: when the two measurements differ, the machine
was not the same before and after, and the comparison says little. Prints throughput and median ITL, predicted over
measured (with the new costs, and with those stored in the engine), and the machine's load.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from precast._native import runtime as native
from precast.benchmark.subject import Subject
from precast.benchmark.throughput import run_workload
from precast.builder.build import cpu_model
from precast.planning.prediction import Plan, Prediction, Targets
from precast.planning.step_costs import stored_costs
from precast.planning.workload import read_workload
from precast.runtime import calibration
from precast.runtime.calibration import StepCosts

# Arrivals, lengths and sharing that differ: a queue that never empties, requests that come one by one, prompts that
# begin alike. About half a minute each for SmolLM2-135M in int8 on two slow cores.
WORKLOADS = {
    "batch": "requests=24,prompt=50..250,output=40..120",
    "arrivals": "requests=20,rate=0.8,prompt=20..200,output=30..100,seed=1",
    "shared prefix": "requests=24,rate=2,prompt=450..600,output=20..80,prefix=0.8x400,seed=2",
}


def costs_now(engine: Path, threads: int) -> tuple[StepCosts, calibration.Measured]:
    measured = calibration.measure(native.Engine(engine, threads).backend)
    return calibration.fit(measured, cpu_model(), threads), measured


def compare(engine: Path, threads: int, name: str, source: str, stored: StepCosts | None) -> None:
    workload = read_workload(source)
    before, steps = costs_now(engine, threads)
    with Subject(engine, threads) as subject:
        real = run_workload(subject, workload)
    _, after = costs_now(engine, threads)
    drift = float(np.median([abs(b / a - 1) for a, b in zip(steps.seconds, after.seconds, strict=False)]))

    def predicted(costs: StepCosts) -> Prediction:
        return Plan(subject.limits, costs, subject.pages, workload, Targets()).predict({})

    print(f"\n{name}: {source}")
    print(
        f"  measured   {real.output_tokens_per_second:8.1f} tok/s  ITL {real.itl.p50 * 1e3:8.2f} ms  "
        f"TTFT {real.ttft.p50 * 1e3:8.1f} ms   steps changed by {drift:.0%} meanwhile, load {os.getloadavg()[0]:.1f}"
    )
    for which, costs in (("now", before), ("stored", stored)):
        if costs is None:
            continue
        found = predicted(costs)
        print(
            f"  {which:<10} {found.output_tokens_per_second:8.1f} tok/s  ITL {found.itl.p50 * 1e3:8.2f} ms  "
            f"TTFT {found.ttft.p50 * 1e3:8.1f} ms   predicted / measured: "
            f"throughput {found.output_tokens_per_second / real.output_tokens_per_second:.2f}, "
            f"ITL {found.itl.p50 / real.itl.p50:.2f}, TTFT {found.ttft.p50 / real.ttft.p50:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--threads", type=int, default=native.available_cpus())
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--workload", action="append", metavar="FILE|DISTRIBUTION", help="as `precast plan` takes it")
    options = parser.parse_args()
    stored = stored_costs(options.engine)
    costs, measured = costs_now(options.engine, options.threads)
    print(f"{cpu_model()}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    print(
        f"the fit is off mixed steps by {costs.error:.1%}, and off all measured ones by "
        f"{np.median(measured.errors(costs.native())):.1%} (medians)"
    )
    if stored is not None:
        print(f"the stored costs are off by {np.median(measured.errors(stored.native())):.1%} (median)")
    given = {f"workload {i}": source for i, source in enumerate(options.workload or [], 1)}
    for _ in range(options.runs):
        for name, source in (given or WORKLOADS).items():
            compare(options.engine, options.threads, name, source, stored)


if __name__ == "__main__":
    main()
