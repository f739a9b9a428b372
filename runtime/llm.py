"""The Python API for threads and scripts: `LLM`. Its twin for asyncio is `async_llm.py`."""

from __future__ import annotations

import os
import queue
import select
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from precast._native import runtime as native
from precast.errors import EngineError
from precast.progress import Progress, silent
from precast.runtime.base_llm import BaseLLM
from precast.runtime.options import RuntimeOptions
from precast.runtime.output import RequestOutput
from precast.runtime.prompts import as_list, errors_of_prompt, with_their_own
from precast.runtime.request_options import RequestOptions
from precast.runtime.sampling import SamplingParams
from precast.runtime.session import Message, Prompt, Session
from precast.runtime.unread import Unread

JOIN_SECONDS = 5.0
"""How long closing waits until all outputs are routed. That takes milliseconds, unless a signal handler closes while
its own thread is interrupted in the middle of taking one."""


class LLM(BaseLLM):
    """Serves one engine. Thread-safe: requests of all threads run in the same batches."""

    def __init__(self, engine: str | Path, **options: Unpack[RuntimeOptions]) -> None:
        super().__init__(engine, **options)
        self._router = _Router(self._session.executor)
        # Also at exit of the interpreter, before it tears down what the threads use.
        self._finalizer = weakref.finalize(self, _Router.close, self._router, False, 0.0)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        progress: Progress = silent,
    ) -> list[RequestOutput]:
        """Answers one prompt or a list of them (texts, lists of token ids, lists of messages), in their order.

        `params`, `options`: for all, or one for each. A request that fails on its own has finish_reason `error`; the
        others go on. Raises RequestError when a prompt is refused (the others are cancelled), EngineError when the
        engine fails.
        """
        items = as_list(prompts)
        outputs = []
        progress("generate", 0, len(items))
        with closing(self._each(items, params, options)) as answers:  # what `progress` raises cancels the rest at once
            for output in answers:
                outputs.append(output)
                progress("generate", len(outputs), len(items))
        return outputs

    def generate_each(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
    ) -> Iterator[RequestOutput]:
        """As `generate`, but each output comes as soon as it and those before it are finished. Closing or dropping the
        iterator cancels what is left."""
        return self._each(prompts, params, options)

    def _each(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: RequestOptions | Sequence[RequestOptions] | None,
    ) -> Generator[RequestOutput, None, None]:
        prepared = []
        for index, (prompt, own, wanted) in enumerate(with_their_own(prompts, params, options)):
            with errors_of_prompt(index, len(prompts)):
                prepared.append((self._session.prompt_ids(prompt), self._session.resolved(own), wanted))
        return self._run_all(prepared)

    def _run_all(
        self, prepared: list[tuple[list[int], SamplingParams, RequestOptions]]
    ) -> Generator[RequestOutput, None, None]:
        pending: list[_Pending] = []
        try:
            for index, (ids, params, options) in enumerate(prepared):
                with errors_of_prompt(index, len(prepared)):
                    pending.append(self._router.submit(self._session, ids, params, False, options))
            for request in pending:
                output = request.next()
                self._raise_if_engine_failed(output)
                yield output
        finally:
            for request in pending:
                request.cancel()

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        options: RequestOptions | None = None,
        **template_variables: Any,
    ) -> RequestOutput:
        """Answers the messages of a chat, rendered with the model's chat template. Raises as `stream` does."""
        ids = self._session.prompt_ids(list(messages), template_variables)
        own = self._session.resolved(params)
        request = self._router.submit(self._session, ids, own, False, options or RequestOptions())
        try:
            return self._checked(request.next())
        finally:
            request.cancel()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        options: RequestOptions | None = None,
        **template_variables: Any,
    ) -> Stream:
        """What is new of the answer to one prompt or the messages of a chat, as it comes: a part for each step, or
        for several to a consumer that has fallen behind.

        Closing the iterator cancels the request. Raises RequestError when it is refused or fails, EngineError when the
        engine fails.
        """
        ids = self._session.prompt_ids(prompt, template_variables)
        own = self._session.resolved(params)
        return Stream(self, self._router.submit(self._session, ids, own, True, options or RequestOptions()))

    def close(self, *, drain: bool = False, timeout: float = 30.0) -> bool:
        """Ends the engine's threads and cancels what is left; with `drain` only after at most `timeout` seconds. Takes
        one step more at most.

        → whether every request came to its own end: False when some were cancelled here, or failed with the engine.
        """
        self._finalizer.detach()
        return self._router.close(drain, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stream(Iterator[RequestOutput]):
    """The outputs of one request. Closing or dropping it cancels the request."""

    def __init__(self, llm: LLM, request: _Pending) -> None:
        self._llm = llm
        self._request = request

    def __next__(self) -> RequestOutput:
        if self._request.finished:
            raise StopIteration
        return self._llm._checked(self._request.next())

    def close(self) -> None:
        """Cancels the request unless it is finished."""
        self._request.cancel()

    def __del__(self) -> None:
        self.close()


class _Pending:
    """A request's outputs, as the router brings them."""

    def __init__(self, executor: native.Executor, prompt_ids: list[int], params: SamplingParams, stream: bool) -> None:
        self._unread = Unread()
        self._lock = threading.Lock()  # of _unread
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # holds something when _unread has got something
        self.id = 0
        self._executor = executor
        self._prompt_ids = prompt_ids
        self._params = params
        self._stream = stream
        self.finished = False

    def put(self, delta: native.OutputDelta) -> None:
        """What the router brings."""
        with self._lock:
            self._unread.add(delta)
            if self._wake.empty():
                self._wake.put(None)

    def _take(self) -> native.OutputDelta:
        while True:
            with self._lock:
                if self._unread:
                    return self._unread.take()
            self._wake.get()

    def next(self) -> RequestOutput:
        """Waits for the next part of a stream, else for all outputs. Raises EngineError in a forked process."""
        if not self._executor.is_here:
            self._executor.stats()  # says so
        deltas = [self._take()]
        while not self._stream and not deltas[-1].finished:
            deltas.append(self._take())
        self.finished = deltas[-1].finished
        return RequestOutput.of(deltas, self._prompt_ids, self._params)

    def cancel(self) -> None:
        """Cancels the request unless its last output was taken; nothing more comes then."""
        if not self.finished:
            self.finished = True
            self._executor.cancel(self.id)


class _Router:
    """A thread that sleeps on the executor's event and hands each delta to who waits for it."""

    def __init__(self, executor: native.Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()  # between submit's return and the entry in _pending no delta is routed
        self._pending: dict[int, _Pending] = {}
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        self._close_lock = threading.Lock()
        self._closed = False
        self._ended_well = False
        self._thread = threading.Thread(target=self._run, name="precast-outputs", daemon=True)
        self._thread.start()

    def submit(
        self, session: Session, ids: list[int], params: SamplingParams, stream: bool, options: RequestOptions
    ) -> _Pending:
        """Raises RequestError when the request is refused, EngineError in a forked process."""
        if not self._executor.is_here:
            self._executor.stats()  # says so; the lock may have been held at the fork
        pending = _Pending(self._executor, ids, params, stream)
        with self._lock:
            pending.id = session.submit(ids, params, stream, options)
            self._pending[pending.id] = pending
        return pending

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._executor.fileno(), select.POLLIN)
        poller.register(self._closing, select.POLLIN)
        while all(fd != self._closing for fd, _ in poller.poll()):
            self._route()
        self._route()

    def _route(self) -> None:
        for delta in self._executor.poll():
            with self._lock:
                pending = self._pending.pop(delta.id, None) if delta.finished else self._pending.get(delta.id)
            if pending is not None:  # none: Ctrl-C came between submit's return and the entry
                pending.put(delta)

    def close(self, drain: bool, timeout: float) -> bool:
        """Ends executor and thread; everybody who waits has a last delta then. May be called again. → `LLM.close`"""
        if not self._executor.is_here:  # a forked process shares the parent's events and has none of its threads
            return False
        with self._close_lock:
            if self._closed:
                return self._ended_well
            self._closed = True
            self._ended_well = self._executor.close(drain, timeout)
            os.eventfd_write(self._closing, 1)
            if threading.current_thread() is not self._thread:  # a garbage collection may run anywhere
                self._thread.join(JOIN_SECONDS)
            if not self._thread.is_alive():
                os.close(self._closing)
        return self._ended_well


def self_check(engine: Path) -> None:
    """Runs an engine once: two prompts of different lengths, a few tokens each.

    Raises EngineError when it cannot, or when its logits are not finite.
    """
    with LLM(engine, generation_config=False) as llm:
        vocab, room = llm.limits.vocab_size, llm.limits.max_seq_len
        prompts = [[i * 7919 % vocab for i in range(min(n, room - 1))] for n in (3, 40)]
        for output in llm.generate(prompts, SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)):
            if output.error is not None:
                raise EngineError(f"the engine {engine} was built and does not work: {output.error}")
