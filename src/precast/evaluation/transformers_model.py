"""A Hugging Face folder as a model that is measured, run by transformers. Only this file needs torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from precast.errors import PrecastError, SourceError
from precast.evaluation.model import F32, rows_at_a_time
from precast.runtime.memory import available_memory
from precast.runtime.text.tokenizer import Tokenizer

PIECE = 32
"""Rows are fed in multiples of this."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


class TransformersModel:
    """See `Model`. Its K/V cache is transformers' own, so that long windows need not have all their logits at once."""

    def __init__(self, folder: Path, dtype: str = "float32", num_threads: int | None = None) -> None:
        """Raises PrecastError when torch or transformers are missing or cannot run the model, or for want of memory."""
        from precast.quantize.describe import refuse_unsupported
        from precast.quantize.sources import open_source

        refuse_unsupported(folder)  # what comes behind this is not made for hostile files
        need = sum(map(math.prod, open_source(folder).shapes().values())) * DTYPE_BYTES[dtype]
        if need > (room := available_memory()):
            raise PrecastError(
                f"{folder} takes {need / 1e9:.2f} GB in {dtype} under transformers and {room / 1e9:.2f} GB are "
                "available; convert it with --quant none and give that checkpoint"
            )
        torch, transformers = _libraries(folder)
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.name = str(folder)
        self.runs_on = f"transformers, {dtype}"
        self.tokenizer = Tokenizer.from_folder(folder)
        self._torch = torch
        self._model = _load(torch, transformers, folder, dtype)
        self._config = self._model.config.get_text_config()
        self.vocab_size = int(self._config.vocab_size)
        self.most_rows = rows_at_a_time(self.vocab_size, PIECE)
        self._cache: Any = None

    def reserve(self, longest: int) -> None:
        positions = getattr(self._config, "max_position_embeddings", None)
        if isinstance(positions, int) and longest > positions:
            raise PrecastError(
                f"{self.name} has positions for {positions} tokens, and this asks for {longest}; ask for less"
            )

    def begin(self) -> None:
        self._cache = None

    def feed(self, tokens: Sequence[int]) -> F32:
        with self._torch.inference_mode():
            ids = self._torch.tensor([list(tokens)])
            try:
                out = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True)
            except (RuntimeError, ValueError, IndexError) as error:
                raise PrecastError(f"transformers cannot run {self.name}: {_first_line(error)}") from None
            self._cache = out.past_key_values
            logits: F32 = np.ascontiguousarray(out.logits[0].float().numpy())
        return logits


def _libraries(folder: Path) -> tuple[Any, Any]:
    try:
        torch, transformers = map(import_module, ("torch", "transformers"))
    except ImportError as error:
        raise SourceError(
            f"{folder} is a Hugging Face folder, which transformers and torch run for this, and one of them is not "
            f"installed ({error}): install precast with the extra `convert`, or give a checkpoint or an engine"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def _load(torch: Any, transformers: Any, folder: Path, dtype: str) -> Any:
    """The model in eval mode: from safetensors in this folder alone, and no code that comes with it."""
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        ).eval()
    except Exception as error:  # whatever a library of this size raises for a folder that it does not take
        raise SourceError(f"transformers cannot load {folder}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
