"""Seconds from process start to the first token, beside llama.cpp, in one run: interleaved, medians, ratio.

usage: python tests/perf/first_token.py MODEL PEER.gguf [--peer-python PYTHON] [--rounds 7] [--threads 2]

MODEL is anything that `precast run` takes. The first round does not count: it makes the engine if there is none, and
brings both files into the file cache. PYTHON is an interpreter that has llama-cpp-python. The clock stops at the first
byte on standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from precast.builder.build import cpu_model

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"

PEER = """
import sys
from llama_cpp import Llama
model, threads, prompt = sys.argv[1], int(sys.argv[2]), sys.argv[3]
llm = Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False)
print(llm(prompt, max_tokens=1, temperature=0)["choices"][0]["text"], flush=True)
"""


def seconds(command: list[str]) -> float:
    """Until the first byte that the command prints."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        elapsed = time.perf_counter() - start
        process.stdout.read()
    if not first or process.returncode:
        sys.exit(f"this failed: {' '.join(command)}")
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("peer")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    threads = str(options.threads)
    ours = [sys.executable, "-m", "precast", "run", options.model, PROMPT, "--raw", "--max-tokens", "1"]
    ours += ["--temperature", "0", "--num-threads", threads]
    theirs = [options.peer_python, "-c", PEER, options.peer, threads, PROMPT]
    print(f"{cpu_model()}; {threads} threads")
    times = [(seconds(ours), seconds(theirs)) for _ in range(options.rounds + 1)][1:]
    mine, peer = (statistics.median(column) for column in zip(*times, strict=True))
    print(json.dumps({"precast_s": round(mine, 3), "llama_cpp_s": round(peer, 3), "ratio": round(mine / peer, 2)}))


if __name__ == "__main__":
    main()
