"""Model source → checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precast.quantize.convert import ConvertOptions, convert

__all__ = ["ConvertOptions", "convert", "describe_source"]


def describe_source(path: Path) -> dict[str, Any]:
    """`precast.quantize.sources.describe_source`, loaded when called: it reads every kind of source."""
    from precast.quantize import sources

    return sources.describe_source(path)
