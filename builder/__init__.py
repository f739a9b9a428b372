"""Checkpoint → engine."""

from __future__ import annotations

from precast.builder.build import build
from precast.builder.options import BuildOptions

__all__ = ["BuildOptions", "build"]
