"""The process that renders this process's chat templates (`template_worker.py`), started when it is first wanted."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from precast.errors import RequestError, SourceError
from precast.runtime.text import template_worker as worker

MAX_SECONDS = 0.5
"""CPU time of one rendering. Long chats with tools take about 10 ms."""

MAX_WAIT = 60.0
"""Seconds, for a machine so busy that the CPU time never comes."""

MAX_CHARACTERS = 16 << 20
"""Of a rendered text: about four million tokens."""


class TemplateProcess:
    """Compiles and renders. Thread-safe: one request at a time. A process that broke a limit is replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes], int], TemplateProcess] | None = None

    def start(self) -> None:
        """Starts the process without waiting for it, so that it is there when a template comes."""
        with self._lock:
            self._running()

    def stop(self) -> None:
        """Ends the process; the next request starts another."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._process = None

    def compile(self, source: str) -> None:
        """Raises SourceError with the reason when the template does not compile."""
        kind, text = self._ask({"source": source})
        if kind != worker.TEXT:
            raise SourceError(text if kind == worker.INVALID else _limit_broken())

    def render(self, source: str, variables: dict[str, Any]) -> str:
        """The text of a template with variables that are JSON values. Raises RequestError with the reason."""
        kind, text = self._ask({"source": source, "variables": variables})
        if kind != worker.TEXT:
            raise RequestError(_limit_broken() if kind == worker.TOO_LARGE else text)
        return text

    def _ask(self, request: dict[str, Any]) -> tuple[int, str]:
        request |= {"seconds": MAX_SECONDS, "characters": MAX_CHARACTERS}
        try:
            data = json.dumps(request).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"messages and variables of a chat template must be JSON values: {error}") from None
        if len(data) >= 1 << 32:
            raise RequestError("the messages of a chat must be smaller than 4 GiB")
        with self._lock:
            process = self._running()
            try:
                kind, text = _exchange(process, data)
            except (OSError, EOFError):
                code = process.wait()
                if code == -signal.SIGPROF:
                    return worker.TOO_LARGE, ""
                raise RequestError(f"the process that renders chat templates ended with code {code}") from None
            if kind == worker.TOO_LARGE:
                process.wait()
            return kind, text

    def _running(self) -> subprocess.Popen[bytes]:
        # After a fork the pipes belong to the parent.
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            if self._finalizer is not None:
                self._finalizer()
            self._process, self._owner = _started(), os.getpid()
            self._finalizer = weakref.finalize(self, _ended, self._process, self._owner)
        return self._process


def _started() -> subprocess.Popen[bytes]:
    specs = (importlib.util.find_spec(name) for name in ("jinja2", "markupsafe"))
    paths = dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin)
    # An embedded interpreter may not know its executable.
    python = sys.executable or str(Path(sys.prefix) / "bin" / "python3")
    kept = {name: os.environ[name] for name in ("TZ", "TZDIR", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        return subprocess.Popen(
            [python, "-I", "-S", str(worker.__file__), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | {"LC_ALL": "C.UTF-8"},
            process_group=0,
        )
    except OSError as error:
        raise RequestError(
            f"chat templates need a process of their own, and {python} does not start: {error}"
        ) from None


def _ended(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # a request that it did not take
                pipe.close()


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> tuple[int, str]:
    """Raises OSError or EOFError when the process ends instead of answering."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + MAX_WAIT
    process.stdin.write(struct.pack("<I", len(request)) + request)
    process.stdin.flush()
    kind, size = struct.unpack("<BI", _read(process, 5, deadline))
    if size > 4 * MAX_CHARACTERS:
        process.kill()
        raise EOFError
    return kind, _read(process, size, deadline).decode("utf-8", "surrogatepass")


def _read(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    assert process.stdout is not None
    descriptor, parts = process.stdout.fileno(), []
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while size > 0:
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            process.kill()
        parts.append(os.read(descriptor, min(size, 1 << 20)))
        if not parts[-1]:
            process.wait()
            raise EOFError
        size -= len(parts[-1])
    return b"".join(parts)


def _limit_broken() -> str:
    return (
        f"it takes more than {MAX_SECONDS} s, {worker.MEMORY >> 20} MiB, or {MAX_CHARACTERS >> 20} million characters: "
        "it may loop for ever"
    )


shared = TemplateProcess()
