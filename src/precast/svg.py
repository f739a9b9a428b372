"""Small drawings: lines and points over axes, in panels one below the other, as SVG."""

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


def write(path: Path, panels: Sequence[str], height: int = HEIGHT) -> None:
    """Writes a drawing of panels, each so high. Raises PrecastError when it cannot."""
    body = "".join(f'<g transform="translate(0 {i * height})">{panel}</g>' for i, panel in enumerate(panels))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height * len(panels)}" '
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


def log_panel(
    title: str,
    unit: str,
    lines: Sequence[tuple[str, F64, F64]],
    points: Sequence[tuple[str, float, float]],
    height: int = HEIGHT,
) -> str:
    """Lines, and points with their names, over a common pair of logarithmic axes; all values are above zero."""
    xs = np.concatenate([x for _, x, _ in lines] + [np.array([x for _, x, _ in points])])
    ys = np.concatenate([y for _, _, y in lines] + [np.array([y for _, _, y in points])])
    left, right, low, top = (np.log10(v) for v in (xs.min(), xs.max(), ys.min() / 1.3, ys.max() * 1.3))
    inner = height - 2 * 32

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (np.log10(x) - left) / (right - left), (np.log10(y) - low) / (top - low)
        return float(MARGIN + across * (WIDTH - 2 * MARGIN)), float(32 + inner - up * inner)

    parts = [f'<text x="{MARGIN}" y="20">{title}</text>']
    bottom = 32 + inner
    axes = f"M{MARGIN},32 L{MARGIN},{bottom} L{WIDTH - MARGIN},{bottom}"
    parts.append(f'<path d="{axes}" fill="none" stroke="#888"/>')
    for value in _steps(left, right):
        at = place(value, 10.0**low)[0]
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{value:,.4g}</text>')
    parts.append(f'<text x="{WIDTH - MARGIN}" y="{bottom + 29}" text-anchor="end">{unit}</text>')
    for value in _steps(low, top):
        at = place(10.0**left, value)[1]
        parts.append(f'<text x="{MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">{value:,.4g}</text>')
    for i, (name, x, y) in enumerate(lines):
        path = " ".join("{:.1f},{:.1f}".format(*place(float(a), float(b))) for a, b in zip(x, y, strict=True))
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        end = WIDTH - MARGIN - 130 * (len(lines) - 1 - i)
        parts.append(f'<text x="{end}" y="20" text-anchor="end" fill="{colour}">{name}</text>')
    return "".join(parts) + _named_points([(name, *place(x, y)) for name, x, y in points], bottom)


def _steps(low: float, top: float) -> list[float]:
    """1, 2 and 5 times each power of ten between two exponents of ten."""
    decades = range(int(np.floor(low)), int(np.ceil(top)) + 1)
    values = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    return [value for value in values if low <= np.log10(value) <= top]


def _named_points(places: Sequence[tuple[str, float, float]], bottom: float) -> str:
    """Points with their names below and to the right, one below the other where they would overlap."""
    parts: list[str] = []
    taken: list[tuple[float, float, float]] = []
    for name, x, y in sorted(places, key=lambda place: place[2]):
        width = 6.5 * len(name)
        before = x + 10 + width > WIDTH - 8
        begin = x - 10 - width if before else x + 10
        at = y + 14
        while at < bottom and any(abs(at - other) < 13 and begin < e and b < begin + width for b, e, other in taken):
            at += 2
        taken.append((begin, begin + width, at))
        anchor, end = ("end", x - 10) if before else ("start", x + 10)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#222"/>')
        parts.append(f'<path d="M{x:.1f},{y:.1f} L{end:.1f},{at - 4:.1f}" stroke="#bbb"/>')
        parts.append(f'<text x="{end:.1f}" y="{at:.1f}" text-anchor="{anchor}" font-size="11">{name}</text>')
    return "".join(parts)
