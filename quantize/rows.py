"""A checkpoint's tensors as f32 in blocks of rows: joined from the source's, and rotated when that is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from precast.checkpoint import ModelConfig
from precast.errors import SourceError
from precast.quantize.pieces import Piece, source_shape
from precast.quantize.rotation import Rotation
from precast.quantize.sources import Source

F32 = npt.NDArray[np.float32]

BLOCK_ELEMENTS = 1 << 22
"""Elements worked on at once, 16 MiB as f32: memory stays bounded however large a tensor is."""


class Rows:
    """The checkpoint's tensors; `pieces`: checkpoint tensor → the pieces of source tensors whose rows it joins."""

    def __init__(self, source: Source, pieces: Mapping[str, tuple[Piece, ...]]) -> None:
        self.source = source
        self.pieces = pieces
        self._shapes = source.shapes()

    def shape(self, name: str) -> tuple[int, ...]:
        """The joined tensor's shape."""
        pieces = self.pieces[name]
        columns = source_shape(pieces[0], self._shapes[pieces[0].tensor])[1:]
        return (sum(map(self._count, pieces)), *columns)

    def _count(self, piece: Piece) -> int:
        """Rows that a piece gives."""
        return source_shape(piece, self._shapes[piece.tensor])[0] if piece.rows is None else len(piece.rows)

    def blocks(self, name: str) -> Iterator[F32]:
        """The tensor in blocks of whole rows (a vector: of elements), in order.

        Raises SourceError when the source holds NaN or infinity.
        """
        return self._joined(name, 1)

    def _joined(self, name: str, multiple: int) -> Iterator[F32]:
        """Blocks of a multiple of `multiple` rows (a piece's last block may be shorter)."""
        columns = int(np.prod(self.shape(name)[1:]))
        step = max(1, BLOCK_ELEMENTS // columns // multiple) * multiple
        for piece in self.pieces[name]:
            count = self._count(piece)
            plus = np.float32(piece.part.plus if name.endswith(".weight") else 0)
            for begin in range(0, count, step):
                block = self._read(piece, begin, min(begin + step, count))
                if not np.isfinite(block).all():
                    raise SourceError(f"{self.source.where}: tensor {piece.tensor} holds NaN or infinity")
                yield block + plus if plus else block

    def _read(self, piece: Piece, begin: int, end: int) -> F32:
        """Rows begin … end of a piece."""
        rows = slice(begin, end) if piece.rows is None else piece.rows[begin:end]
        stored = self._shapes[piece.tensor]
        if len(stored) == 1 or not (piece.part.transposed or piece.part.flat):
            return self.source.rows(piece.tensor, rows)
        whole = self.source.rows(piece.tensor, slice(0, stored[0]))
        return np.ascontiguousarray((whole.reshape(-1) if piece.part.flat else whole.T)[rows])

    def whole(self, name: str) -> F32:
        """All rows at once."""
        out = np.empty(self.shape(name), np.float32)
        begin = 0
        for block in self._joined(name, 1):
            out[begin : begin + len(block)] = block
            begin += len(block)
        return out


class RotatedRows(Rows):
    """Norm gains folded into the linears behind them, the residual stream and each head's values rotated.

    With residual rows x·Q and values v·R per head (the method is told in rotation.py): what reads the residual stream
    becomes W·diag(gain)·Q, what writes it QᵀW, the embedding E·Q; value rows RᵀW, and the output projection's columns
    W·R per head.
    """

    def __init__(self, source: Source, pieces: Mapping[str, tuple[Piece, ...]], config: ModelConfig) -> None:
        super().__init__(source, pieces)
        assert config.rotation is not None
        seed = config.rotation["seed"]
        self.head_size = config.head_size
        self.shared_norm = config.parallel_shared_norm
        self.value_rows = config.num_key_value_heads * config.head_size
        self.hidden = Rotation(config.hidden_size, seed)
        self.values = Rotation(config.head_size, seed, signs=False)

    def blocks(self, name: str) -> Iterator[F32]:
        module, _, suffix = name.rpartition(".")
        kind = module.split(".", 3)[-1] if ".layers." in module else module
        if kind.endswith("norm"):
            yield from super().blocks(name)
        elif suffix == "bias":
            yield self._bias(kind, self.whole(name))
        elif kind == "transformer.vocab_embedding":
            for block in super().blocks(name):
                yield self.hidden.apply(block)
        elif _writes(kind):
            yield from self._writer(kind, name)
        else:
            yield from self._reader(module, kind, name)

    def _reader(self, module: str, kind: str, name: str) -> Iterator[F32]:
        """A linear that reads the residual stream through a norm."""
        gain = self.whole(self._norm_before(module, kind) + ".weight")
        first_value = self.shape(name)[0] - self.value_rows if kind == "attention.qkv" else None
        begin = 0
        for block in self._joined(name, self.head_size):
            block = self.hidden.apply(block * gain)
            if first_value is not None and begin >= first_value:
                heads = block.reshape(-1, self.head_size, block.shape[1])
                block = np.concatenate([self.values.apply_rows(head) for head in heads])
            begin += len(block)
            yield block

    def _writer(self, kind: str, name: str) -> Iterator[F32]:
        """A linear that writes the residual stream: every row of the result needs every row of the weight."""
        weight = self.whole(name)
        rows, columns = weight.shape
        step = max(1, BLOCK_ELEMENTS // rows // self.head_size) * self.head_size
        for begin in range(0, columns, step):
            block = weight[:, begin : begin + step]
            if kind == "attention.dense":
                heads = block.reshape(rows, -1, self.head_size)
                block = self.values.apply(heads).reshape(block.shape)
            weight[:, begin : begin + step] = self.hidden.apply_rows(block)
        yield weight

    def _norm_before(self, module: str, kind: str) -> str:
        """The norm that feeds a linear."""
        if module == "lm_head":
            return "transformer.ln_f"
        first = kind == "attention.qkv" or self.shared_norm
        return module.removesuffix(kind) + ("input_layernorm" if first else "post_layernorm")

    def _bias(self, kind: str, bias: F32) -> F32:
        if _writes(kind):
            return self.hidden.apply(bias)
        if kind == "attention.qkv":
            values = bias[-self.value_rows :]
            values[:] = self.values.apply(values.reshape(-1, self.head_size)).reshape(-1)
        return bias


def _writes(kind: str) -> bool:
    """Whether a linear's result is added to the residual stream."""
    return kind == "attention.dense" or kind.endswith(".proj")
