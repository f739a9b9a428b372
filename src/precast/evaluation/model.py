"""What is measured: a model that gives whole rows of logits, whatever runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from precast.errors import PrecastError
from precast.progress import Progress, silent
from precast.runtime.text.tokenizer import Tokenizer

F32 = npt.NDArray[np.float32]

LOGIT_BYTES = 64 << 20
"""Of the logits that a model gives at a time: more rows than that are computed piece by piece."""


class Model(Protocol):
    """A model with one sequence, which grows."""

    name: str
    """For messages: its path."""
    runs_on: str
    """For people: what computes its logits, and in which precision."""
    vocab_size: int
    tokenizer: Tokenizer
    most_rows: int
    """Tokens that `feed` takes at a time."""

    def reserve(self, longest: int) -> None:
        """Makes room for sequences of `longest` tokens, once, before the first. Raises PrecastError without room."""

    def begin(self) -> None:
        """Begins a new sequence, and forgets the one before."""

    def feed(self, tokens: Sequence[int]) -> F32:
        """Appends tokens to the sequence → logits f32 [len(tokens), vocab_size], of the token behind each."""


def open_model(
    path: Path, dtype: str | None = None, num_threads: int | None = None, progress: Progress = silent
) -> Model:
    """A Hugging Face folder under transformers, in `dtype` ("float32" unless told); a checkpoint or a GGUF file as the
    engine that the build cache has or makes of it, the GGUF unquantized; an engine as it is.

    Raises PrecastError when the model cannot be had.
    """
    from precast.pipeline import engine_for, kind_of

    kind = kind_of(path)
    if kind == "source" and path.is_dir():
        from precast.evaluation.transformers_model import TransformersModel

        return TransformersModel(path, dtype or "float32", num_threads)
    from precast.evaluation.engine_model import EngineModel
    from precast.quantize import ConvertOptions

    unquantized = ConvertOptions(quant="none") if kind == "source" else None
    return EngineModel(engine_for(path, unquantized, progress=progress), num_threads, name=str(path))


def feed_all(models: Sequence[Model], tokens: Sequence[int]) -> Iterator[tuple[int, list[F32]]]:
    """Feeds the same new sequence to models of one vocabulary, piece by piece → where each piece begins, and the
    logits [rows, vocab_size] of every model. Raises PrecastError for logits that are not finite."""
    for model in models:
        model.begin()
    rows = min(model.most_rows for model in models)
    for at in range(0, len(tokens), rows):
        yield at, [finite(model, model.feed(tokens[at : at + rows])) for model in models]


def finite(model: Model, logits: F32) -> F32:
    """The logits. Raises PrecastError when one is not finite."""
    if not np.isfinite(logits).all():
        raise PrecastError(f"{model.name} gives logits that are not finite: it cannot be measured")
    return logits


def rows_at_a_time(vocab_size: int, page_tokens: int) -> int:
    """Rows of logits that LOGIT_BYTES hold, in whole pages; one page at least."""
    return max(1, LOGIT_BYTES // (4 * vocab_size * page_tokens)) * page_tokens
