"""Time to first token behind a long system prompt: computed, found in the cache, and computed ahead of time.

    python -m tests.perf.prefix_ttft CHECKPOINT [--prefix 2000] [--question 50] [--rounds 5] [--threads N]

Builds two engines of CHECKPOINT in a temporary folder, one of them with the prefix. In each round, interleaved: a
request without prefix caching; one that follows another with the same prefix; the very first request after loading the
engine that was built with the prefix. Questions are random and differ. Prints medians and their ratio to the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from precast import LLM, SamplingParams
from precast.builder import BuildOptions, build
from precast.builder.build import cpu_model
from precast.prefixes import add_prefixes

FIRST = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prefix", type=int, default=2000, help="tokens")
    parser.add_argument("--question", type=int, default=50, help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="default: as many as CPUs")
    given = parser.parse_args()
    random = np.random.default_rng(0)
    print(f"{cpu_model()}, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}")

    with tempfile.TemporaryDirectory() as folder:
        plain, ahead = Path(folder) / "plain", Path(folder) / "ahead"
        options = BuildOptions(max_seq_len=given.prefix + given.question + 64)
        build(given.checkpoint, plain, options)
        with LLM(plain) as llm:
            vocab = llm.limits.vocab_size
        prefix = random.integers(0, vocab, given.prefix).tolist()
        pages = prefix[: len(prefix) // 32 * 32]
        build(given.checkpoint, ahead, options, check=lambda made: add_prefixes(made, [pages]))
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(given.rounds):
            for name, engine, warm in (("computed", plain, 0), ("cached", plain, 1), ("ahead of time", ahead, 0)):
                with LLM(engine, num_threads=given.threads, enable_prefix_caching=name != "computed") as llm:
                    if name != "ahead of time":  # maps the engine's pages; the prefix must not be known from it
                        llm.generate([random.integers(0, vocab, 40).tolist()], FIRST)
                    for _ in range(warm):
                        llm.generate([prefix + random.integers(0, vocab, given.question).tolist()], FIRST)
                    (output,) = llm.generate([prefix + random.integers(0, vocab, given.question).tolist()], FIRST)
                seconds[name].append(output.timings.first_token)
                cached = output.usage.cached_tokens
                assert cached == 0 if name == "computed" else cached >= len(pages), (name, cached)
    base = statistics.median(seconds["computed"])
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(f"{name:16} {middle * 1000:8.1f} ms   1/{base / middle:.1f}   {[round(v * 1000, 1) for v in values]}")


if __name__ == "__main__":
    main()
