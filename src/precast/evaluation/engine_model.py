"""An engine as a model that is measured: steps of its backend, without executor or sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from precast._native import runtime as native
from precast.errors import EngineError, PrecastError
from precast.evaluation.model import F32, rows_at_a_time
from precast.json_file import read_object
from precast.planning.kv_memory import limits_of
from precast.runtime.memory import available_memory
from precast.runtime.text.tokenizer import Tokenizer


class EngineModel:
    """See `Model`. A row's logits are those that serving samples from, bit for bit."""

    def __init__(self, engine: Path, num_threads: int | None = None, name: str | None = None) -> None:
        """`name`: for messages. Raises PrecastError when the engine does not load here."""
        self._limits = limits = limits_of(engine)
        self.name = name or str(engine)
        self.runs_on = _runs_on(engine)
        self.vocab_size = limits.vocab_size
        self.tokenizer = Tokenizer.from_folder(engine)
        self.most_rows = min(limits.max_num_tokens, rows_at_a_time(limits.vocab_size, limits.page_tokens))
        self.max_seq_len = limits.max_seq_len
        self._engine = native.Engine(engine, num_threads or 0)
        self._table = np.zeros((1, 0), np.int32)
        self._length = 0

    def reserve(self, longest: int) -> None:
        limits = self._limits
        if longest > limits.max_seq_len:
            raise PrecastError(
                f"{self.name} holds {limits.max_seq_len} tokens in a sequence, and this asks for {longest}; ask for "
                "less"
            )
        pages = -(-longest // limits.page_tokens)
        need = pages * sum(group.page_bytes for group in limits.groups)
        if need > (room := available_memory()):
            raise PrecastError(f"the K/V of {longest} tokens takes {need:,} bytes, and {room:,} are available")
        self._table = np.arange(pages, dtype=np.int32)[None]
        self._engine.allocate_pages(pages)

    def begin(self) -> None:
        self._length = 0

    def feed(self, tokens: Sequence[int]) -> F32:
        spans = np.array([[len(tokens), self._length]], np.int32)
        rows = np.arange(len(tokens), dtype=np.int32)
        logits: F32 = self._engine.forward(np.array(tokens, np.int32), spans, self._table, rows)
        self._length += len(tokens)
        return logits


def _runs_on(engine: Path) -> str:
    config = read_object(engine / "config.json", EngineError)
    model, built = config.get("pretrained_config"), config.get("build_config")
    if not isinstance(model, dict) or not isinstance(built, dict):
        raise EngineError(f"{engine / 'config.json'} does not say what the engine was built from; build it again")
    quantization = model.get("quantization")
    algorithm = quantization.get("quant_algo") if isinstance(quantization, dict) else None
    return f"engine, {algorithm or model.get('dtype')}, KV {built.get('kv_cache_dtype')}"
