"""Steps by hand: a naive driver of an engine's `forward`, with one page pool and one block table a sequence."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precast._native import runtime

PAGE_TOKENS = 32

F32 = npt.NDArray[np.float32]


@dataclass
class Sequence:
    """A sequence in the pool: its length so far and its pages, which lie in no particular order."""

    length: int = 0
    pages: list[int] = field(default_factory=list)


class Steps:
    """Drives one engine. Pages are handed out from a shuffled list, so that no test passes by luck of their order."""

    def __init__(self, engine: Path, num_threads: int = 1, num_pages: int = 256, weights_memory: str = "map") -> None:
        self.engine = runtime.Engine(engine, num_threads, weights_memory)
        self.engine.allocate_pages(num_pages)
        self.free = [int(p) for p in np.random.default_rng(0).permutation(num_pages)]

    def step(
        self,
        work: SequenceOf[tuple[Sequence, list[int]]],
        rows: SequenceOf[int] | None = None,
        copies: SequenceOf[tuple[int, int, int, int]] = (),
    ) -> F32:
        """Appends tokens to sequences, all in one step, after `copies` of (group, from page, to page, first tokens);
        → logits of `rows` (None: of all rows, in order)."""
        spans, tables, tokens = [], [], []
        for sequence, new in work:
            spans.append((len(new), sequence.length))
            sequence.length += len(new)
            while len(sequence.pages) * PAGE_TOKENS < sequence.length:
                sequence.pages.append(self.free.pop())
            tables.append(sequence.pages)
            tokens += new
        table = np.full((len(tables), max(map(len, tables))), -1, np.int32)
        for i, pages in enumerate(tables):
            table[i, : len(pages)] = pages
        wanted = range(len(tokens)) if rows is None else rows
        logits: F32 = self.engine.forward(
            np.array(tokens, np.int32),
            np.array(spans, np.int32),
            table,
            np.array(list(wanted), np.int32),
            np.array(copies, np.int32).reshape(-1, 4),
        )
        return logits

    def logits(self, tokens: list[int], chunks: SequenceOf[int] = ()) -> F32:
        """Logits of every position of one new sequence, fed in chunks; the last chunk takes what is left."""
        sequence, out, at = Sequence(), [], 0
        for size in [*chunks, len(tokens) - sum(chunks)]:
            if size > 0:
                out.append(self.step([(sequence, tokens[at : at + size])]))
            at += size
        self.release(sequence)
        return np.concatenate(out)

    def release(self, sequence: Sequence) -> None:
        """Gives a sequence's pages back."""
        self.free += sequence.pages
        sequence.pages = []
        sequence.length = 0


def make_engine(hf: Path, folder: Path, convert: dict[str, Any] | None = None, **limits: Any) -> Path:
    """Converts and builds a Hugging Face folder into `folder`/engine; → that."""
    from precast.builder import BuildOptions, build
    from precast.quantize import ConvertOptions
    from precast.quantize import convert as convert_folder

    convert_folder(hf, folder / "ckpt", ConvertOptions(**(convert or {})))
    build(folder / "ckpt", folder / "engine", BuildOptions(**({"max_num_tokens": 1024, "max_batch_size": 16} | limits)))
    return folder / "engine"
