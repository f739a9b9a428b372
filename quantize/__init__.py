"""Model source → checkpoint."""

from __future__ import annotations

from precast.quantize.convert import ConvertOptions, convert
from precast.quantize.sources import describe_source

__all__ = ["ConvertOptions", "convert", "describe_source"]
