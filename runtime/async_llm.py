"""`AsyncLLM`: the same engine for asyncio. No thread waits: the event loop watches the executor's event."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from precast._native import runtime as native
from precast.errors import RequestError
from precast.runtime.base_llm import BaseLLM
from precast.runtime.options import RuntimeOptions
from precast.runtime.output import RequestOutput
from precast.runtime.prompts import as_list, errors_of_prompt, with_their_own
from precast.runtime.request_options import RequestOptions
from precast.runtime.sampling import SamplingParams
from precast.runtime.session import Message, Prompt
from precast.runtime.unread import Unread

_LONG_PROMPT = 4096
"""Characters from which on a text is encoded in a thread: 256k tokens take hundreds of milliseconds."""


class AsyncLLM(BaseLLM):
    """Serves one engine to one event loop: the one that the first request runs in.

    Cancelling a task, or closing a stream, cancels its request. When that event loop is closed, another one may follow;
    what the first has left is cancelled.
    """

    def __init__(self, engine: str | Path, **options: Unpack[RuntimeOptions]) -> None:
        """As `LLM`; blocks while it maps the engine."""
        super().__init__(engine, **options)
        self._pending: dict[int, _Request] = {}
        self._watcher = _Watcher(self._session.executor)
        self._finalizer = weakref.finalize(self, _forgotten, self._session.executor, self._watcher)

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
    ) -> list[RequestOutput]:
        """As `LLM.generate`."""
        items = as_list(prompts)
        prepared = []
        for index, (prompt, own, wanted) in enumerate(with_their_own(items, params, options)):
            with errors_of_prompt(index, len(items)):
                prepared.append((await self._prompt_ids(prompt), self._session.resolved(own), wanted))
        requests: list[_Request] = []
        try:
            for index, (ids, sampling, wanted) in enumerate(prepared):
                with errors_of_prompt(index, len(items)):
                    requests.append(self._submit(ids, sampling, False, wanted))
            outputs = [await request.next() for request in requests]
        finally:
            for request in requests:
                request.cancel()
        for output in outputs:
            self._raise_if_engine_failed(output)
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

    async def close(self, *, drain: bool = False, timeout: float = 30.0) -> bool:
        """As `LLM.close`. Raises RequestError in an event loop that is not the engine's, while that runs."""
        self._watcher.check(asyncio.get_running_loop())
        self._finalizer.detach()
        if not self._session.executor.is_here:
            return False
        ended_well = await asyncio.to_thread(self._session.executor.close, drain, timeout)
        self._route()
        self._watcher.stop()
        return ended_well

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
        loop = asyncio.get_running_loop()
        self._watcher.check(loop)
        request = _Request(self, self._session.submit(ids, params, stream, options), ids, params, stream)
        if self._watcher.loop is not loop:
            for left in self._pending.values():  # by a loop that is closed
                left.cancel()
            self._pending.clear()
            self._watcher.start(loop, weakref.ref(self))
        self._pending[request.id] = request  # deltas are routed by this thread, so none was missed
        return request

    def _route(self) -> None:
        for delta in self._session.executor.poll():
            request = self._pending.pop(delta.id, None) if delta.finished else self._pending.get(delta.id)
            if request is not None:  # none: of a loop that is closed
                request.put(delta)

    def _cancel(self, request_id: int) -> None:
        self._session.executor.cancel(request_id)


class _Request:
    def __init__(
        self, llm: AsyncLLM, request_id: int, prompt_ids: list[int], params: SamplingParams, stream: bool
    ) -> None:
        self.id = request_id
        self._unread = Unread()
        self._ready = asyncio.Event()  # _unread holds something
        self.finished = False
        self._llm = llm
        self._prompt_ids = prompt_ids
        self._params = params
        self._stream = stream

    def put(self, delta: native.OutputDelta) -> None:
        self._unread.add(delta)
        self._ready.set()

    async def _take(self) -> native.OutputDelta:
        while not self._unread:
            self._ready.clear()
            await self._ready.wait()
        return self._unread.take()

    async def next(self) -> RequestOutput:
        deltas = [await self._take()]
        while not self._stream and not deltas[-1].finished:
            deltas.append(await self._take())
        self.finished = deltas[-1].finished
        return RequestOutput.of(deltas, self._prompt_ids, self._params)

    def cancel(self) -> None:
        if not self.finished:
            self.finished = True
            self._llm._cancel(self.id)


class _Watcher:
    """The event loop that watches an executor, if any."""

    def __init__(self, executor: native.Executor) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._executor = executor

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises RequestError when another one does, and is not closed."""
        if self.loop is not None and self.loop is not loop and not self.loop.is_closed():
            raise RequestError(
                "this AsyncLLM belongs to another running event loop; make one for each loop, or use LLM"
            )

    def start(self, loop: asyncio.AbstractEventLoop, llm: weakref.ref[AsyncLLM]) -> None:
        loop.add_reader(self._executor.fileno(), _route_weakly, llm)
        self.loop = loop

    def stop(self) -> None:
        """In that loop."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.remove_reader(self._executor.fileno())
        self.loop = None


def _forgotten(executor: native.Executor, watcher: _Watcher) -> None:
    """Ends an AsyncLLM that nobody has closed; in any thread. A descriptor that were closed while a loop watches it
    would hide its successor of the same number, so the executor lives until that loop has let go of it."""
    executor.close(False, 0.0)
    if watcher.loop is not None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            watcher.loop.call_soon_threadsafe(watcher.stop)


def _route_weakly(llm: weakref.ref[AsyncLLM]) -> None:
    """So that an event loop does not keep an AsyncLLM alive."""
    if (alive := llm()) is not None:
        alive._route()
