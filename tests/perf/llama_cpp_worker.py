"""llama.cpp as a peer: a process that answers measurements over standard input, one JSON line each.

Runs in an environment that has llama-cpp-python. usage: python llama_cpp_worker.py MODEL.gguf [CONTEXT ...]

Begins with a line about itself. Requests and answers, times in seconds:
    {"threads": n}                                           of steps of one token, and of all others
    {"prefill": tokens}                                      a prompt in an empty context
    {"extend": tokens, "at": position}                       a piece of the one long prompt, the next or the last again
    {"decode": sequences, "context": tokens, "steps": n}     after one that does not count; each answer a time of a step
→ {"seconds": [...]}. Contexts named on the command line that the long prompt passes need no prompt of their own when
they are decoded from. Flash attention on, K/V in f16, 512 tokens a batch.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp as llama

BATCH = 512
MOST_STEPS = 80
"""Of one "decode", with the one that does not count."""


@llama.llama_log_callback
def _quiet(level: int, text: bytes, data: Any) -> None: ...


class Peer:
    def __init__(self, path: str, contexts: list[int]) -> None:
        llama.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.threads = 1
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self._kept = set(contexts)
        self._states: dict[int, Any] = {}  # of one sequence, by its length
        self._decoding: dict[tuple[int, int], Any] = {}  # contexts, by sequences and their length
        self._long = self.context(max([*contexts, BATCH]), 1) if contexts else None

    def context(self, tokens: int, sequences: int) -> Any:
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max = tokens * sequences, sequences
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = 1
        context = llama.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("llama_init_from_model failed")
        return context

    def decode(self, context: Any, rows: list[tuple[int, int, bool]]) -> float:
        """rows: (position, sequence, wants logits); → seconds."""
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (position, sequence, logits) in enumerate(rows):
            batch.token[i] = random.randrange(10, self.vocab_size - 10)
            batch.pos[i], batch.n_seq_id[i], batch.logits[i] = position, 1, logits
            batch.seq_id[i][0] = sequence
        llama.llama_set_n_threads(context, self.threads, self.threads)
        start = time.perf_counter()
        if llama.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        llama.llama_synchronize(context)
        elapsed = time.perf_counter() - start
        llama.llama_batch_free(batch)
        return elapsed

    def prompt(self, context: Any, tokens: int, begin: int = 0) -> float:
        end, seconds = begin + tokens, 0.0
        for at in range(begin, end, BATCH):
            seconds += self.decode(context, [(i, 0, i == end - 1) for i in range(at, min(end, at + BATCH))])
        return seconds

    def prefill(self, tokens: int) -> list[float]:
        context = self.context(tokens, 1)
        seconds = self.prompt(context, tokens)
        llama.llama_free(context)
        return [seconds]

    def extend(self, tokens: int, at: int) -> list[float]:
        llama.llama_memory_seq_rm(llama.llama_get_memory(self._long), 0, at, -1)
        seconds = self.prompt(self._long, tokens, at)
        if at + tokens in self._kept:
            self._states[at + tokens] = self.state(self._long)
        return [seconds]

    def state(self, context: Any) -> Any:
        size = llama.llama_state_seq_get_size(context, 0)
        data = (ctypes.c_ubyte * size)()
        if llama.llama_state_seq_get_data(context, data, size, 0) != size:
            raise RuntimeError("llama_state_seq_get_data failed")
        return data

    def decoding(self, sequences: int, tokens: int) -> Any:
        """A context with so many sequences of so many tokens."""
        if (sequences, tokens) not in self._decoding:
            context = self._decoding[sequences, tokens] = self.context(tokens + MOST_STEPS, sequences)
            if sequences > 1 or tokens not in self._states:
                self.prompt(context, tokens)
            else:
                data = self._states[tokens]
                if not llama.llama_state_seq_set_data(context, data, len(data), 0):
                    raise RuntimeError("llama_state_seq_set_data failed")
            for sequence in range(1, sequences):  # copies: each sequence has memory of its own
                llama.llama_memory_seq_cp(llama.llama_get_memory(context), 0, sequence, -1, -1)
        return self._decoding[sequences, tokens]

    def steps(self, sequences: int, tokens: int, steps: int) -> list[float]:
        context = self.decoding(sequences, tokens)
        seconds = [
            self.decode(context, [(position, sequence, True) for sequence in range(sequences)])
            for position in range(tokens, tokens + 1 + steps)
        ]
        for sequence in range(sequences):
            llama.llama_memory_seq_rm(llama.llama_get_memory(context), sequence, tokens, -1)
        return seconds[1:]

    def answer(self, ask: dict[str, int]) -> list[float]:
        if "threads" in ask:
            self.threads = ask["threads"]
            return []
        if "prefill" in ask:
            return self.prefill(ask["prefill"])
        if "extend" in ask:
            return self.extend(ask["extend"], ask["at"])
        return self.steps(ask["decode"], ask["context"], ask["steps"])


def about() -> dict[str, Any]:
    """Versions and build flags."""
    library = ctypes.CDLL(str(Path(llama.__file__).parent / "lib" / "libggml-base.so"))
    found = {}
    for name in ("ggml_version", "ggml_commit"):
        function = getattr(library, name, None)
        if function is not None:
            function.restype = ctypes.c_char_p
            found[name] = function().decode()
    flags = [flag.strip() for flag in llama.llama_print_system_info().decode().split("|") if flag.strip()]
    return {"pid": os.getpid(), "version": llama.__version__, **found, "flags": ", ".join(flags)}


def main() -> None:
    random.seed(0)
    peer = Peer(sys.argv[1], [int(tokens) for tokens in sys.argv[2:]])
    print(json.dumps(about()), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": peer.answer(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
