"""Small drawings: lines over axes, in panels one below the other, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precast.errors import PrecastError

F64 = npt.NDArray[np.float64]

WIDTH, HEIGHT, MARGIN = 760, 220, 56
MOST_POINTS = 1500
COLOURS = ("#1668b8", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0e7490")


def write(path: Path, panels: Sequence[str]) -> None:
    """Writes a drawing of panels. Raises PrecastError when it cannot."""
    body = "".join(f'<g transform="translate(0 {i * HEIGHT})">{panel}</g>' for i, panel in enumerate(panels))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT * len(panels)}" '
    style = 'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    try:
        path.write_text(head + style + body + "</svg>\n")
    except OSError as error:
        raise PrecastError(f"{path} cannot be written: {error.strerror}") from None


def panel(title: str, unit: str, lines: Sequence[tuple[str, F64, F64]], target: float | None = None) -> str:
    """Lines over a common pair of axes from zero; a dashed line at the target."""
    right = max([float(x.max(initial=0.0)) for _, x, _ in lines] + [target or 0.0, 1e-9])
    top = max([float(y.max(initial=0.0)) for _, _, y in lines] + [1e-9])
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * 32

    def place(x: float, y: float) -> str:
        return f"{MARGIN + x / right * width:.1f},{32 + height - y / top * height:.1f}"

    parts = [f'<text x="{MARGIN}" y="20">{title}</text>']
    axes = f"M{place(0, top)} L{place(0, 0)} L{place(right, 0)}"
    parts.append(f'<path d="{axes}" fill="none" stroke="#888"/>')
    for share in (0.0, 0.5, 1.0):
        x, y = place(share * right, 0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 15:.1f}" text-anchor="middle">{share * right:.3g} {unit}</text>')
        y = place(0, share * top).split(",")[1]
        parts.append(f'<text x="{MARGIN - 6}" y="{y}" text-anchor="end">{share * top:.3g}</text>')
    for i, (name, xs, ys) in enumerate(lines):
        chosen = np.unique(np.linspace(0, max(0, len(xs) - 1), min(len(xs), MOST_POINTS)).astype(int))
        points = " ".join(place(float(xs[k]), float(ys[k])) for k in chosen)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="1.5"/>'
        )
        at = WIDTH - MARGIN - 90 * (len(lines) - i)
        parts.append(f'<text x="{at}" y="20" fill="{COLOURS[i % len(COLOURS)]}">{name}</text>')
    if target is not None:
        line = f"M{place(target, 0)} L{place(target, top)}"
        parts.append(f'<path d="{line}" stroke="#444" stroke-dasharray="4 3"/>')
    return "".join(parts)
