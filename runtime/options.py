"""How an engine is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from precast._native import runtime as native
from precast.errors import EngineError
from precast.runtime.checks import INT32_MAX, INT64_MAX, check_whole


class RuntimeOptions(TypedDict, total=False):
    """What is left out, or None, has the default."""

    num_threads: int | None
    """Default: as many CPUs as affinity mask and cgroup give."""
    weights_memory: Literal["map", "copy"] | None
    """`map`: the engine file's own pages, which processes share. `copy`: memory of this process, in huge pages.
    Default: map."""
    kv_cache_memory: int | None
    """Bytes of the KV pool. Default: what the engine's limits can use, at most half of the memory that is available."""
    max_batch_size: int | None
    """Sequences of a step, within the engine's limit, which is the default."""
    max_num_tokens: int | None
    """Tokens of a step, within the engine's limit, which is the default."""
    max_chunk_tokens: int | None
    """Tokens of one prompt in a step, at least a KV page. Default: as many as the step has room for."""
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] | None
    """When a request enters, and whether it can be paused: docs/scheduling.md. Default: guaranteed_no_evict."""
    request_order: Literal["fcfs", "priority", "cache_aware"] | None
    """Who enters first. Default: fcfs."""
    prefill_order: Literal["first_come", "equal_progress"] | None
    """How prompts share a step. Default: first_come."""
    max_overtakes: int | None
    """How often later requests may enter before one that waits; then nobody enters before it does. Default: 16."""
    enable_prefix_caching: bool | None
    """Whether requests share what was computed of equal beginnings. No answer depends on it. Default: True."""
    max_queued_requests: int | None
    """Requests that may wait to be admitted; more are refused with QueueFullError. Default: no limit."""
    max_queued_tokens: int | None
    """Tokens of the prompts that may wait. A single prompt may have more. Default: no limit."""
    kv_events: int | None
    """How many events of the prefix cache are kept for `kv_events()`. Default: none."""
    generation_config: bool
    """Whether sampling defaults come from the model's generation_config.json. Default: True."""
    chat_template: str | Path | None
    """A file with a Jinja template, or the name of one of the model's. Default: the model's own."""


_MOST = {
    "num_threads": INT32_MAX,
    "kv_cache_memory": INT64_MAX,
    "max_batch_size": INT32_MAX,
    "max_num_tokens": INT32_MAX,
    "max_chunk_tokens": INT32_MAX,
    "max_overtakes": INT32_MAX,
    "max_queued_requests": INT32_MAX,
    "max_queued_tokens": INT64_MAX,
    "kv_events": INT64_MAX,
}
"""Of those that are whole numbers, from 0 on."""

_TEXTS = ("weights_memory", "scheduler_policy", "request_order", "prefill_order")


def check_limits(given: Mapping[str, Any], limits: native.ModelLimits) -> None:
    """Raises EngineError for more than the engine was built for."""
    for name, most in (("max_batch_size", limits.max_batch_size), ("max_num_tokens", limits.max_num_tokens)):
        if given.get(name, 0) > most:
            raise EngineError(
                f"{name} is {given[name]}, and this engine was built for {most}; give less, or build for more"
            )


def given_options(options: RuntimeOptions) -> dict[str, Any]:
    """Those that are not None. Raises EngineError for values of another type or out of range, TypeError for options
    that do not exist."""
    if unknown := sorted(options.keys() - RuntimeOptions.__annotations__.keys()):
        raise TypeError(f"{unknown[0]} is no option of an engine; {', '.join(RuntimeOptions.__annotations__)} are")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name in _MOST:
            check_whole(name, value, 0, _MOST[name], EngineError)
        if name in _TEXTS and not isinstance(value, str):
            raise EngineError(f"{name} is {value!r}; it must be a text")
    return given
