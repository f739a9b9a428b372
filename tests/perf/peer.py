"""llama.cpp as a peer, in a process of its own (llama_cpp_worker.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Peer:
    """Measures on request."""

    def __init__(self, python: str, model: str, contexts: Sequence[int]) -> None:
        """`python` is an interpreter that has llama-cpp-python."""
        worker = str(Path(__file__).with_name("llama_cpp_worker.py"))
        self._process = subprocess.Popen(
            [python, worker, model, *map(str, contexts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self._answer()
        self.pid = self._process.pid

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the llama.cpp process ended; run tests/perf/llama_cpp_worker.py by hand to see why")
        value: dict[str, Any] = json.loads(line)
        return value

    def measure(self, **what: int) -> list[float]:
        """Seconds; `what` as the worker takes it."""
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return [float(seconds) for seconds in self._answer()["seconds"]]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
