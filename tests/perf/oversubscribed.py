"""What a busy machine costs: steps of an engine alone, and beside as many busy processes as there are CPUs.

    python -m tests.perf.oversubscribed ENGINE [--rounds 5] [--threads N]

Then twice as many threads want to run as there are CPUs: a fair share of half of them doubles the time, and what is
above that is lost at barriers, where all threads wait for one that does not run. Prints medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from precast.benchmark.latency import decode_steps
from precast.benchmark.subject import Subject
from precast.builder.build import cpu_model


def spin() -> None:
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    started = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    time.sleep(1)  # until they have been imported, and the scheduler has balanced them
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="default: as many as CPUs")
    given = parser.parse_args()
    cpus = len(os.sched_getaffinity(0))
    print(f"{cpu_model()}, {cpus} CPUs, load {os.getloadavg()[0]:.1f}")
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    with Subject(given.engine, given.threads) as subject:
        batches = {n: [subject.tokens(100) for _ in range(n)] for n in (1, 8)}
        for _ in range(given.rounds):
            for others in (0, cpus):
                with ExitStack() as stack:
                    if others:
                        stack.enter_context(busy(others))
                    (output,) = subject.run([subject.tokens(256)], 1)
                    seconds["prefill 256", others].append(output.first_token_seconds)
                    for n, batch in batches.items():
                        seconds[f"decode x {n}", others] += decode_steps(subject, batch)
    for what in dict.fromkeys(name for name, _ in seconds):
        alone, beside = (statistics.median(seconds[what, others]) for others in (0, cpus))
        print(
            f"{what:12} alone {alone * 1e3:8.1f} ms   beside {cpus} busy {beside * 1e3:8.1f} ms   {beside / alone:.2f}x"
        )


if __name__ == "__main__":
    main()
