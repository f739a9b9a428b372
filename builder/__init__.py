"""Checkpoint → engine."""

from __future__ import annotations

from precast.builder.build import BuildOptions, build

__all__ = ["BuildOptions", "build"]
