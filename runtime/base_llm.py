"""What `LLM` and `AsyncLLM` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from precast._native import runtime as native
from precast.errors import EngineError
from precast.runtime.options import RuntimeOptions
from precast.runtime.output import RequestOutput
from precast.runtime.sampling import SamplingParams
from precast.runtime.session import Prompt, Session


class BaseLLM:
    """Serves one engine."""

    def __init__(self, engine: str | Path, **options: Unpack[RuntimeOptions]) -> None:
        """Maps the engine folder `engine`, which `precast build` made.

        Raises EngineError when the engine does not load here and for options that cannot be, SourceError for a broken
        tokenizer or chat template.
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

    def _raise_if_engine_failed(self, output: RequestOutput) -> None:
        """A request's own error is left to who reads the output."""
        failure = None if output.error is None else self._session.failure(output)
        if isinstance(failure, EngineError):
            raise failure

    def _checked(self, output: RequestOutput) -> RequestOutput:
        if output.error is not None:
            raise self._session.failure(output)
        return output
