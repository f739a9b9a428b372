"""`AsyncLLM`: the same engine for asyncio. No thread waits: the event loop watches the executor's event."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from precast._native import runtime as native
from precast.errors import EngineError, RequestError
from precast.runtime.base_llm import BaseLLM, RuntimeOptions
from precast.runtime.output import RequestOutput
from precast.runtime.prompts import as_list, named, options_for, params_for
from precast.runtime.request_options import RequestOptions
from precast.runtime.sampling import SamplingParams
from precast.runtime.session import Message, Prompt

_LONG_PROMPT = 4096
"""Characters from which on a text is encoded in a thread: 256k tokens take hundreds of milliseconds."""


class AsyncLLM(BaseLLM):
    """Serves one engine to one event loop: the one that the first request runs in.

    Cancelling a task, or closing a stream, cancels its request.
    """

    def __init__(self, engine: str | Path, **options: Unpack[RuntimeOptions]) -> None:
        """As `LLM`; blocks while it maps the engine."""
        super().__init__(engine, **options)
        self._pending: dict[int, asyncio.Queue[native.OutputDelta]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finalizer = weakref.finalize(self, self._session.executor.close, False, 0.0)

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
    ) -> list[RequestOutput]:
        """As `LLM.generate`."""
        items = as_list(prompts)
        every = params_for(items, params)
        prepared = []
        for index, (prompt, own, wishes) in enumerate(zip(items, every, options_for(items, options), strict=True)):
            try:
                prepared.append((await self._prompt_ids(prompt), self._session.resolved(own), wishes))
            except RequestError as error:
                raise named(error, index, len(items)) from None
        requests: list[_Request] = []
        try:
            for index, (ids, own, wishes) in enumerate(prepared):
                try:
                    requests.append(self._submit(ids, own, False, wishes))
                except RequestError as error:
                    raise named(error, index, len(items)) from None
            outputs = [await request.next() for request in requests]
        finally:
            for request in requests:
                request.cancel()
        for output in outputs:
            if output.error is not None and isinstance(self._session.failure(output), EngineError):
                raise self._session.failure(output)
        return outputs

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        options: RequestOptions | None = None,
        **template_variables: Any,
    ) -> RequestOutput:
        """As `LLM.chat`."""
        ids = await self._prompt_ids(list(messages), template_variables)
        request = self._submit(ids, self._session.resolved(params), False, options or RequestOptions())
        try:
            return self._checked(await request.next())
        finally:
            request.cancel()

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        options: RequestOptions | None = None,
        **template_variables: Any,
    ) -> AsyncIterator[RequestOutput]:
        """As `LLM.stream`: `async for output in llm.stream(…)`."""
        ids = await self._prompt_ids(prompt, template_variables)
        request = self._submit(ids, self._session.resolved(params), True, options or RequestOptions())
        try:
            while not request.finished:
                yield self._checked(await request.next())
        finally:
            request.cancel()

    async def close(self, *, drain: bool = False, timeout: float = 30.0) -> None:
        """As `LLM.close`."""
        self._finalizer.detach()
        if not self._session.executor.is_here:
            return
        await asyncio.to_thread(self._session.executor.close, drain, timeout)
        self._route()
        if self._loop is not None:
            self._loop.remove_reader(self._session.executor.fileno())
            self._loop = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _prompt_ids(self, prompt: Prompt, template_variables: dict[str, Any] | None = None) -> list[int]:
        if isinstance(prompt, str) and len(prompt) < _LONG_PROMPT:
            return self._session.prompt_ids(prompt, template_variables)
        return await asyncio.to_thread(self._session.prompt_ids, prompt, template_variables)

    def _submit(self, ids: list[int], params: SamplingParams, stream: bool, options: RequestOptions) -> _Request:
        self._watch()
        request = _Request(self, self._session.submit(ids, params, stream, options), ids, params, stream)
        self._pending[request.id] = request.deltas  # deltas are routed by this thread, so none was missed
        return request

    def _watch(self) -> None:
        """Lets the running event loop watch the executor; a closed one that did before is forgotten."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RequestError(
                "this AsyncLLM belongs to another running event loop; make one for each loop, or use LLM"
            )
        self._loop = loop
        self._pending.clear()
        loop.add_reader(self._session.executor.fileno(), _route_weakly, weakref.ref(self))

    def _route(self) -> None:
        for delta in self._session.executor.poll():
            deltas = self._pending.pop(delta.id, None) if delta.finished else self._pending.get(delta.id)
            if deltas is not None:  # none: of a loop that is closed
                deltas.put_nowait(delta)

    def _cancel(self, request_id: int) -> None:
        self._session.executor.cancel(request_id)


class _Request:
    def __init__(
        self, llm: AsyncLLM, request_id: int, prompt_ids: list[int], params: SamplingParams, stream: bool
    ) -> None:
        self.id = request_id
        self.deltas: asyncio.Queue[native.OutputDelta] = asyncio.Queue()
        self.finished = False
        self._llm = llm
        self._prompt_ids = prompt_ids
        self._params = params
        self._stream = stream

    async def next(self) -> RequestOutput:
        deltas = [await self.deltas.get()]
        while not self._stream and not deltas[-1].finished:
            deltas.append(await self.deltas.get())
        self.finished = deltas[-1].finished
        return RequestOutput.of(deltas, self._prompt_ids, self._params)

    def cancel(self) -> None:
        if not self.finished:
            self.finished = True
            self._llm._cancel(self.id)


def _route_weakly(llm: weakref.ref[AsyncLLM]) -> None:
    """So that an event loop does not keep an AsyncLLM alive."""
    if (alive := llm()) is not None:
        alive._route()
