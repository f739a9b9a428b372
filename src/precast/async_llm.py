"""`AsyncLLM` for any MODEL. Apart from pipeline.py, so that what is not asyncio does not import it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from precast.pipeline import engine_for
from precast.progress import Progress, silent
from precast.runtime import async_llm
from precast.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from precast.builder import BuildOptions
    from precast.quantize import ConvertOptions


class AsyncLLM(async_llm.AsyncLLM):
    """`precast.runtime.async_llm.AsyncLLM` for any MODEL, as `LLM` is."""

    def __init__(
        self,
        model: str | Path,
        *,
        convert_options: ConvertOptions | None = None,
        build_options: BuildOptions | None = None,
        progress: Progress = silent,
        revision: str | None = None,
        **options: Unpack[RuntimeOptions],
    ) -> None:
        """As `precast.LLM`."""
        super().__init__(engine_for(model, convert_options, build_options, progress, revision), **options)
