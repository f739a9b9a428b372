"""What a start is made of: one process, one JSON line. usage: python -m tests.perf.start_parts ENGINE THREADS map|copy

Seconds from the first line of the program on: to import precast, load the tokenizer, map (or copy) and check the
engine; then two steps of a prompt of 20 tokens and two of one token, with the page faults of each.
"""

from __future__ import annotations

import time

begin = time.perf_counter()

import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from precast.runtime.llm import LLM  # noqa: E402, F401
from precast.runtime.text.tokenizer import Tokenizer  # noqa: E402

imported = time.perf_counter()

from precast._native import runtime  # noqa: E402
from tests.steps import Sequence, Steps  # noqa: E402

PROMPT = 20


def step(steps: Steps, sequence: Sequence, tokens: int) -> dict[str, Any]:
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    steps.step([(sequence, list(range(100, 100 + tokens)))], rows=[tokens - 1])
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "minor_faults": after.ru_minflt - before.ru_minflt,
        "major_faults": after.ru_majflt - before.ru_majflt,
    }


def main() -> None:
    engine, threads, memory = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    found: dict[str, Any] = {"import": imported - begin}
    start = time.perf_counter()
    Tokenizer.from_folder(engine)
    found["tokenizer"] = time.perf_counter() - start
    start = time.perf_counter()
    runtime.Engine(engine, threads, memory)
    found["engine"] = time.perf_counter() - start
    steps = Steps(engine, threads, weights_memory=memory)
    for name, tokens in (("prompt", PROMPT), ("prompt again", PROMPT), ("token", 1), ("token again", 1)):
        sequence = Sequence()
        found[name] = step(steps, sequence, tokens)
        steps.release(sequence)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
