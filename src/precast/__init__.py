"""precast compiles Hugging Face language models ahead of time into engines and serves them with a lean C++ runtime.

The public names load lazily: `import precast` itself imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from precast.async_llm import AsyncLLM
    from precast.pipeline import LLM
    from precast.runtime.output import RequestOutput
    from precast.runtime.request_options import RequestOptions
    from precast.runtime.sampling import SamplingParams

_HOMES = {
    "LLM": "precast.pipeline",
    "AsyncLLM": "precast.async_llm",
    "RequestOptions": "precast.runtime.request_options",
    "RequestOutput": "precast.runtime.output",
    "SamplingParams": "precast.runtime.sampling",
}

__all__ = ["LLM", "AsyncLLM", "RequestOptions", "RequestOutput", "SamplingParams", "__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'precast' has no attribute {name!r}")
