"""What `LLM` and `AsyncLLM` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from precast._native import runtime as native
from precast.runtime.output import RequestOutput
from precast.runtime.sampling import SamplingParams
from precast.runtime.session import Prompt, Session


class RuntimeOptions(TypedDict, total=False):
    """How an engine is run. What is left out, or None, has the default."""

    num_threads: int | None
    """Default: as many CPUs as affinity mask and cgroup give."""
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


class BaseLLM:
    """Serves one engine."""

    def __init__(self, engine: str | Path, **options: Unpack[RuntimeOptions]) -> None:
        """Maps the engine folder `engine`, which `precast build` made.

        Raises EngineError when the engine does not load here, SourceError for a broken tokenizer or chat template.
        """
        self._session = Session(engine, **options)

    @property
    def limits(self) -> native.ModelLimits:
        """What the engine was built for."""
        return self._session.limits

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be given."""
        return self._session.chat_template is not None

    def pause(self) -> None:
        """Lets no step begin until `resume`. Requests are taken and wait; cancelling and timeouts work."""
        self._session.executor.pause()

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._session.executor.resume()

    def stats(self) -> native.ExecutorStats:
        """Counts of requests, pages and steps."""
        return self._session.executor.stats()

    def iteration_stats(self) -> tuple[list[native.IterationStats], int]:
        """What the steps since the last call were like, oldest first, and how many are not among them: the last 1,000
        are kept. Names as in TensorRT-LLM's iteration statistics."""
        return self._session.executor.iteration_stats()

    def kv_events(self) -> tuple[list[native.CacheEvent], int]:
        """What the prefix cache has stored and removed since the last call, oldest first, and how many events are not
        among them. Needs the option `kv_events`."""
        return self._session.executor.kv_events()

    def default_params(self, generation_config: bool | None = None, **given: Any) -> SamplingParams:
        """SamplingParams of `given`, completed by the model's generation_config.json unless that is turned off."""
        return self._session.default_params(generation_config, **given)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that a prompt would run. Raises RequestError."""
        return self._session.prompt_ids(prompt)

    def _checked(self, output: RequestOutput) -> RequestOutput:
        if output.error is not None:
            raise self._session.failure(output)
        return output
