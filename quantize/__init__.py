"""Model source → checkpoint."""

from __future__ import annotations

from precast.quantize.convert import ConvertOptions, convert

__all__ = ["ConvertOptions", "convert"]
