"""A drawing of latencies, as SVG: rates of prefill over prompt lengths, and of decode over batch sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from precast import svg
from precast.benchmark.latency import Latency


def draw(found: Latency, path: Path) -> None:
    """Writes two panels. Raises PrecastError when it cannot."""
    prefill = sorted(found.prefill, key=lambda p: p.prompt_tokens)
    lengths = np.array([float(p.prompt_tokens) for p in prefill])
    rates = np.array([p.tokens_per_second for p in prefill])
    lines = []
    for context in sorted({d.context for d in found.decode}):
        own = sorted((d for d in found.decode if d.context == context), key=lambda d: d.batch_size)
        sizes = np.array([float(d.batch_size) for d in own])
        lines.append((f"at {context}", sizes, np.array([d.tokens_per_second for d in own])))
    panels = [
        svg.panel("prefill: tokens per second over prompt length", "tokens", [("prefill", lengths, rates)]),
        svg.panel("decode: tokens per second over batch size", "sequences", lines),
    ]
    svg.write(path, panels)
