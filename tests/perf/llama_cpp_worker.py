"""llama.cpp as a peer: a process that answers measurements over standard input, one JSON line each.

Runs in an environment that has llama-cpp-python. usage: python llama_cpp_worker.py MODEL.gguf THREADS
Requests: {"prefill": tokens} or {"decode": sequences, "steps": n, "context": tokens}; answers {"tokens_per_s": x}.
Settings: flash attention on, f16 KV cache, ubatch 512, the same threads for prompt and decode.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from typing import Any

import llama_cpp as llama


@llama.llama_log_callback
def _quiet(level: int, text: bytes, data: Any) -> None: ...


class Peer:
    def __init__(self, path: str, threads: int) -> None:
        llama.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.threads = threads
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def context(self, tokens: int, sequences: int) -> Any:
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max = tokens * sequences, sequences
        params.n_batch, params.n_ubatch = 2048, 512
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = 1
        return llama.llama_init_from_model(self.model, params)

    def decode(self, context: Any, rows: list[tuple[int, int, bool]]) -> None:
        """rows: (position, sequence, wants logits)."""
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (position, sequence, logits) in enumerate(rows):
            batch.token[i] = random.randrange(10, self.vocab_size - 10)
            batch.pos[i], batch.n_seq_id[i], batch.logits[i] = position, 1, logits
            batch.seq_id[i][0] = sequence
        if llama.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        llama.llama_batch_free(batch)

    def prefill(self, tokens: int) -> float:
        context = self.context(tokens + 16, 1)
        start = time.perf_counter()
        self.decode(context, [(i, 0, i == tokens - 1) for i in range(tokens)])
        elapsed = time.perf_counter() - start
        llama.llama_free(context)
        return tokens / elapsed

    def batched(self, sequences: int, steps: int, start_at: int) -> float:
        context = self.context(start_at + steps + 8, sequences)
        for sequence in range(sequences):
            self.decode(context, [(i, sequence, False) for i in range(start_at)])
        start = time.perf_counter()
        for step in range(steps):
            self.decode(context, [(start_at + step, sequence, True) for sequence in range(sequences)])
        elapsed = time.perf_counter() - start
        llama.llama_free(context)
        return sequences * steps / elapsed


def main() -> None:
    random.seed(0)
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"version": llama.__version__}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        if "prefill" in ask:
            rate = peer.prefill(ask["prefill"])
        else:
            rate = peer.batched(ask["decode"], ask["steps"], ask["context"])
        print(json.dumps({"tokens_per_s": rate}), flush=True)


if __name__ == "__main__":
    main()
