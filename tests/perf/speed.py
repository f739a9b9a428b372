"""Tokens a second of an engine beside llama.cpp, in one run: interleaved, medians, ratios.

usage: python tests/perf/speed.py ENGINE PEER.gguf [--peer-python PYTHON] [--rounds 5] [--threads 2]

PEER.gguf holds a model of the same shape, quantized as the engine is (int8: Q8_0). PYTHON is an interpreter that has
llama-cpp-python. Prints the machine, the settings and one JSON line per measurement. Machines are shared and noisy:
quote the ratios.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from precast.builder.build import cpu_model
from tests.steps import Sequence, Steps

MEASURES: list[dict[str, int]] = [
    {"prefill": 512},
    {"decode": 1, "steps": 32, "context": 32},
    {"decode": 4, "steps": 16, "context": 32},
    {"decode": 16, "steps": 16, "context": 32},
    {"decode": 1, "steps": 16, "context": 2000},
]


class Peer:
    """A llama.cpp process that measures on request."""

    def __init__(self, python: str, model: str, threads: int) -> None:
        worker = str(Path(__file__).with_name("llama_cpp_worker.py"))
        command = [python, worker, model, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.version = self._answer()["version"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the llama.cpp process ended; run tests/perf/llama_cpp_worker.py by hand to see why")
        value: dict[str, Any] = json.loads(line)
        return value

    def measure(self, what: dict[str, int]) -> float:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return float(self._answer()["tokens_per_s"])


class Ours:
    """The engine, stepped by hand; logits of the last row of each sequence, as in serving."""

    def __init__(self, engine: Path, threads: int) -> None:
        most = max(m.get("decode", 1) * (m.get("context", m.get("prefill", 0)) + m.get("steps", 0)) for m in MEASURES)
        self.steps = Steps(engine, threads, num_pages=2 * most // 32 + 64)
        self._random = np.random.default_rng(0)

    def _tokens(self, count: int) -> list[int]:
        return [int(t) for t in self._random.integers(10, self.steps.engine.limits.vocab_size - 10, count)]

    def _prompt(self, tokens: int) -> Sequence:
        sequence, most = Sequence(), self.steps.engine.limits.max_num_tokens
        for begin in range(0, tokens, most):
            chunk = self._tokens(min(most, tokens - begin))
            self.steps.step([(sequence, chunk)], rows=[len(chunk) - 1])
        return sequence

    def measure(self, what: dict[str, int]) -> float:
        if "prefill" in what:
            start = time.perf_counter()
            sequences = [self._prompt(what["prefill"])]
            rate = what["prefill"] / (time.perf_counter() - start)
        else:
            sequences = [self._prompt(what["context"]) for _ in range(what["decode"])]
            start = time.perf_counter()
            for _ in range(what["steps"]):
                self.steps.step([(sequence, self._tokens(1)) for sequence in sequences])
            rate = what["decode"] * what["steps"] / (time.perf_counter() - start)
        for sequence in sequences:
            self.steps.release(sequence)
        return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("peer")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    peer = Peer(options.peer_python, options.peer, options.threads)
    ours = Ours(options.engine, options.threads)
    isa = ours.steps.engine.plan_attributes["isa"]
    print(f"{cpu_model()}, {platform.system()} {platform.release()}; {options.threads} threads, ISA level {isa}")
    print(f"peer: llama-cpp-python {peer.version}, {options.peer}, flash attention on; medians of {options.rounds}")
    for what in MEASURES:
        ours.measure(what), peer.measure(what)  # warm-up
        pairs = [(ours.measure(what), peer.measure(what)) for _ in range(options.rounds)]
        mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        spread = [round(min(a / b for a, b in pairs), 2), round(max(a / b for a, b in pairs), 2)]
        row = {**what, "tokens_per_s": round(mine, 1), "peer": round(theirs, 1), "ratio": round(ratio, 2)}
        print(json.dumps(row | {"ratio_min_max": spread}), flush=True)


if __name__ == "__main__":
    main()
