"""A roofline: steps of an engine under the limits of the machine, by the operations that they make for each byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precast import svg
from precast.builder.machine_limits import Limits, Work

HEIGHT = 440


@dataclass(frozen=True)
class Step:
    """One step, or several that belong together."""

    name: str
    work: Sequence[Work]
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations for each byte read."""
        return sum(sum(step.ops.values()) for step in self.work) / sum(step.read_bytes for step in self.work)

    @property
    def gops(self) -> float:
        """10⁹ operations per second."""
        return sum(sum(step.ops.values()) for step in self.work) / self.seconds / 1e9


def draw(steps: Sequence[Step], limits: Limits, path: Path) -> None:
    """Writes an SVG: both axes logarithmic; the roof of each dtype is reading up to its peak, and its peak from there.

    Raises PrecastError when it cannot.
    """
    peaks = {"int8": limits.i8_ops, "bf16": limits.bf16_ops, "f32": limits.f32_ops}
    left = min([1.0, *(step.intensity / 2 for step in steps)])
    right = max([1000.0, *(step.intensity * 2 for step in steps)])
    roofs = []
    for dtype, peak in peaks.items():
        x = np.array([left, peak / limits.read_bytes, right])
        roofs.append((f"{dtype} {peak / 1e9:,.0f} GOPS", x, np.minimum(x * limits.read_bytes, peak) / 1e9))
    points = [(step.name, step.intensity, step.gops) for step in steps]
    title = f"GOPS over operations for each byte read; reading at {limits.read_bytes / 1e9:.1f} GB/s"
    svg.write(path, [svg.log_panel(title, "ops/byte", roofs, points, HEIGHT)], HEIGHT)
