"""A drawing of a prediction, as SVG: who runs and waits over time, and how TTFT and ITL are distributed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from precast import svg
from precast.planning.prediction import Plan, Prediction
from precast.svg import F64


def draw(plan: Plan, prediction: Prediction, path: Path) -> None:
    """Writes three panels. Raises PrecastError when it cannot."""
    result = plan.simulate(prediction.options, record_steps=True)
    begins = np.array([step.begin for step in result.steps])
    running = np.array([float(step.running) for step in result.steps])
    waiting = np.array([float(step.waiting) for step in result.steps])
    arrivals = np.array([request.arrival for request in plan.workload])
    ttft = np.sort(result.first_tokens - arrivals)
    itl = np.sort(np.concatenate([np.diff(result.token_times(i)) for i in range(len(arrivals))]))
    panels = [
        svg.panel("sequences over time", "s", [("running", begins, running), ("waiting", begins, waiting)]),
        svg.panel("time to first token: share of requests", "s", [("TTFT", ttft, _shares(ttft))], plan.targets.ttft),
        svg.panel("time between tokens: share of gaps", "s", [("ITL", itl, _shares(itl))]),
    ]
    svg.write(path, panels)


def _shares(values: F64) -> F64:
    return np.arange(1, len(values) + 1) / max(1, len(values))
