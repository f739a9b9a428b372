"""The step costs of an engine: stored when it is built, read or measured again when something is planned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from precast._native import runtime as native
from precast.builder.build import cpu_model
from precast.builder.engine_file import EngineFile, EngineWriter
from precast.errors import EngineError
from precast.progress import Progress, silent
from precast.runtime import calibration
from precast.runtime.calibration import StepCosts


@dataclass(frozen=True)
class Calibration:
    """The step costs that are planned with."""

    costs: StepCosts
    measured_now: bool
    stored_error: float | None = None
    """How far the engine's own are off what was measured now: the median of |predicted / measured − 1|."""
    warnings: list[str] = field(default_factory=list)


def stored_costs(engine: Path) -> StepCosts | None:
    """The step costs in an engine folder; None: it has none. Raises EngineError for a damaged engine."""
    file = EngineFile.open(engine / "rank0.engine")
    if calibration.SECTION not in file.sections:
        return None
    return StepCosts.from_bytes(bytes(file.bytes(calibration.SECTION)), str(file.path))


def calibrate(
    engine: Path, recalibrate: bool = False, num_threads: int | None = None, progress: Progress = silent
) -> Calibration:
    """The engine's step costs, or with `recalibrate` new ones. Raises EngineError when it has none."""
    stored = stored_costs(engine)
    threads = num_threads or native.available_cpus()
    if recalibrate:
        measured, costs = _measured(engine, threads, progress)
        error = None if stored is None else float(np.median(measured.errors(stored.native())))
        return Calibration(costs, True, error)
    if stored is None:
        raise EngineError(f"{engine} has no step costs; add --recalibrate, or build it again")
    warnings = []
    for what, then, now in (("CPU", stored.cpu, cpu_model()), ("number of threads", stored.threads, threads)):
        if then != now:
            warnings.append(f"the step costs were measured with {what} {then}, and here it is {now}; use --recalibrate")
    return Calibration(stored, False, None, warnings)


def add_costs(engine: Path, progress: Progress = silent) -> StepCosts:
    """Measures the step costs of a fresh engine folder and stores them in it. Raises EngineError."""
    _, costs = _measured(engine, native.available_cpus(), progress)
    data = costs.to_bytes()
    writer = EngineWriter.extend(engine / "rank0.engine", [(calibration.SECTION, calibration.TAG, len(data))])
    try:
        writer.add(calibration.SECTION, data)
        writer.close()
    except BaseException:
        writer.abort()
        raise
    return costs


def _measured(engine: Path, threads: int, progress: Progress) -> tuple[calibration.Measured, StepCosts]:
    measured = calibration.measure(native.Engine(engine, threads).backend, progress)
    return measured, calibration.fit(measured, cpu_model(), threads)
