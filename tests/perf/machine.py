"""The machine that something is measured on: what else it does meanwhile, and what its CPU is known to reach."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from precast.builder.machine_limits import Limits

T = TypeVar("T")

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpu:
    """As CPUID tells it; names are often cut in virtual machines."""

    vendor: str
    family: int
    model: int


@dataclass(frozen=True)
class KnownLimits:
    """What all of `num_threads` CPUs, each a core, have reached when nothing else ran."""

    cpu: str
    vendor: str
    family: int
    models: tuple[int, ...]
    """Empty: all of the family."""
    num_threads: int
    limits: Limits


KNOWN = (
    KnownLimits("AMD Zen 5", "AuthenticAMD", 26, (), 2, Limits(52e9, 2.2e12, 1.1e12, 0.56e12)),
    KnownLimits("AMD Zen 4", "AuthenticAMD", 25, tuple(range(16, 32)), 2, Limits(57e9, 945e9, 472e9, 236e9)),
    KnownLimits("AMD Zen 1", "AuthenticAMD", 23, (1,), 2, Limits(20e9, 80e9, 80e9, 80e9)),
)

LEAST_OF_KNOWN = 0.95


def this_cpu(cpuinfo: str | None = None) -> Cpu | None:
    """Of the text of /proc/cpuinfo; None where it does not say."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    fields = dict(line.partition(":")[::2] for line in text.partition("\n\n")[0].splitlines())
    found = {name.strip(): value.strip() for name, value in fields.items()}
    try:
        return Cpu(found["vendor_id"], int(found["cpu family"]), int(found["model"]))
    except (KeyError, ValueError):
        return None


def known_limits(cpu: Cpu | None, num_threads: int) -> KnownLimits | None:
    """What `cpu` is known to reach with so many threads."""
    if cpu is None:
        return None
    for known in KNOWN:
        same = (known.vendor, known.family, known.num_threads) == (cpu.vendor, cpu.family, num_threads)
        if same and (not known.models or cpu.model in known.models):
            return known
    return None


def lower_than_known(found: Limits, known: KnownLimits) -> list[str]:
    """A sentence for each probe that says that this machine was not what its CPU is."""
    return [
        f"{name} is {value:.3g}, below {LEAST_OF_KNOWN:.0%} of the {getattr(known.limits, name):.3g} of {known.cpu}"
        for name, value in asdict(found).items()
        if value < LEAST_OF_KNOWN * getattr(known.limits, name)
    ]


def highest(limits: Sequence[Limits]) -> Limits:
    """Of each probe, the best of several."""
    return Limits(**{name: max(getattr(found, name) for found in limits) for name in asdict(limits[0])})


def spread(rounds: Sequence[Limits]) -> dict[str, float]:
    """Of each probe, how far the lowest of the rounds lies below the highest, as a share."""
    columns = {name: [getattr(found, name) for found in rounds] for name in asdict(rounds[0])}
    return {name: 1 - min(values) / max(values) for name, values in columns.items()}


class BusyError(Exception):
    """The machine had other work all the time."""


class Watch:
    """Measures when the machine has nothing else to do, and again when it had something else to do meanwhile."""

    def __init__(self, processes: Sequence[int], most: float, patience: float) -> None:
        """`processes` are this measurement's own; others may take `most` of all CPU time, a share, while something
        is measured. `patience`: seconds to wait for that, each time."""
        self._processes, self._most, self._patience = processes, most, patience
        self.others: list[float] = []
        """Share of all CPU time that others took, of each measurement that counts."""
        self.disturbed = 0
        """Measurements that did not count."""

    def undisturbed(self, measure: Callable[[], T]) -> T:
        """What `measure` gives; it is called until it was alone. Raises BusyError when it never is."""
        end = time.monotonic() + self._patience
        while True:
            self._wait_until_idle(end)
            before = _ticks(self._processes)
            value = measure()
            share, few = _others(before, _ticks(self._processes))
            if share <= self._most or few:
                self.others.append(share)
                return value
            self.disturbed += 1

    def _wait_until_idle(self, end: float) -> None:
        said = False
        while self._most < 1:
            before = _ticks(self._processes)
            time.sleep(0.5)
            share, few = _others(before, _ticks(self._processes))
            if share <= self._most or few:
                return
            if time.monotonic() > end:
                raise BusyError(f"other processes took {share:.0%} of the CPUs")
            if not said:
                print("waiting for an idle machine", file=sys.stderr, flush=True)
                said = True

    def summary(self) -> str:
        """How busy the machine was, for the page."""
        if not self.others:
            return "nothing was measured"
        return (
            f"other processes (and the hypervisor) took {statistics.median(self.others):.1%} of the CPUs in the median "
            f"measurement and {max(self.others):.1%} in the worst; {self.disturbed} of "
            f"{self.disturbed + len(self.others)} were disturbed by more than {self._most:.0%} and made again"
        )


def _ticks(processes: Sequence[int]) -> tuple[int, int, int]:
    """(all CPU time, that which was used or stolen, that which `processes` used), in ticks since the start."""
    user, nice, system, idle, waiting, irq, soft_irq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    used = user + nice + system + irq + soft_irq + steal
    own = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        own += int(fields[11]) + int(fields[12])
    return used + idle + waiting, used, own


def _others(before: tuple[int, int, int], after: tuple[int, int, int]) -> tuple[float, bool]:
    """(the share of all CPU time that others took between two _ticks, whether it is too few ticks to tell)."""
    every, used, own = (b - a for a, b in zip(before, after, strict=True))
    others = max(0, used - own)
    return others / max(1, every), others <= 2
