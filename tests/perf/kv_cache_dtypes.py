"""Decode steps at a long context with each dtype of the KV cache, in one run: interleaved, medians, ratios to bfloat16.

    python -m tests.perf.kv_cache_dtypes CHECKPOINT [--context 4000] [--batch 1] [--rounds 5] [--threads N]

Builds an engine of CHECKPOINT for each dtype in a temporary folder. Prompts of `context` random tokens, one for each
sequence of the batch, are computed once and come from the prefix cache afterwards. Prints what the model takes in a
step that decodes the whole batch, and the bytes that the KV cache of a token takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from precast import LLM, SamplingParams
from precast.builder import BuildOptions, build
from precast.builder.build import cpu_model

DTYPES = ("bfloat16", "float32", "int8", "fp8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--context", type=int, default=4000, help="tokens")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="default: as many as CPUs")
    given = parser.parse_args()
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    print(f"{cpu_model()}, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"context {given.context}, batch {given.batch}")

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines: dict[str, LLM] = {}
        for dtype in DTYPES:
            options = BuildOptions(
                max_batch_size=given.batch, max_seq_len=given.context + 64, kv_cache_dtype=dtype, max_num_tokens=512
            )
            build(given.checkpoint, Path(folder) / dtype, options)
            engines[dtype] = stack.enter_context(LLM(Path(folder) / dtype, num_threads=given.threads))
        vocab = engines["bfloat16"].limits.vocab_size
        prompts = np.random.default_rng(0).integers(0, vocab, (given.batch, given.context)).tolist()
        for llm in engines.values():
            llm.generate(prompts, params)
        steps: dict[str, list[float]] = defaultdict(list)
        for _ in range(given.rounds):
            for dtype, llm in engines.items():
                llm.iteration_stats()
                llm.generate(prompts, params)
                steps[dtype] += [
                    step.model_latency_ms
                    for step in llm.iteration_stats()[0]
                    if step.inflight_batching_stats.num_gen_requests == given.batch
                ]
        base = statistics.median(steps["bfloat16"])
        for dtype, values in steps.items():
            (group, *_) = engines[dtype].limits.groups
            middle = statistics.median(values)
            print(
                f"{dtype:10} {middle:8.2f} ms a step   {base / middle:5.2f}x   "
                f"{group.page_bytes / engines[dtype].limits.page_tokens:8.0f} bytes a token   ({len(values)} steps)"
            )


if __name__ == "__main__":
    main()
