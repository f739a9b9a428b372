"""sentencepiece models, rebuilt with `tokenizers`; and their file, `tokenizer.model`, read without trust.

The file is a protobuf message (sentencepiece_model.proto). Its wire format is a run of (key, value): the key holds
a field's number and the value's kind: a varint, 8 bytes, a length with as many bytes, or 4 bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from precast.errors import SourceError
from precast.json_file import read_small_file
from precast.runtime.text.tokenizer_limits import refuse_charsmap

# Kinds of pieces; GGUF's tokenizer.ggml.token_type has the same numbers.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

UNIGRAM, BPE = 1, 2
"""Kinds of models; there are words and characters too, which no language model uses."""

MAX_FILE_BYTES = 64 << 20
"""The largest known (Gemma's) takes 4.7 MB."""

MAX_PIECE = 1024
MAX_CUT_CHARACTERS = 1 << 26
"""Characters of a piece, and of all parts of all pieces together: merges are found by cutting a piece everywhere.
Gemma's 262,144 pieces of at most 31 characters make 11 million."""


@dataclass(frozen=True)
class SentencePiece:
    """A model: its pieces by id, and how text becomes pieces."""

    pieces: list[str]
    scores: list[float]
    kinds: list[int]
    model: int = BPE
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    byte_fallback: bool = True
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = False
    charsmap: bytes = b""

    def special_tokens(self) -> dict[str, str]:
        """`bos_token` and its like → text, for those that the model has."""
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_id, "unk_token": self.unk_id, "pad_token": self.pad_id}
        return {name: self.pieces[i] for name, i in ids.items() if 0 <= i < len(self.pieces)}

    def tokenizer(self) -> Tokenizer:
        """The same ids and text as sentencepiece's, but that control pieces in a text are tokens, as transformers has
        it.

        Raises ValueError for pieces that are too long and scores that are no numbers; the library raises bare Exception
        for what makes no tokenizer.
        """
        if max(map(len, self.pieces)) > MAX_PIECE or sum(len(piece) ** 2 for piece in self.pieces) > MAX_CUT_CHARACTERS:
            raise ValueError(f"it has a piece of more than {MAX_PIECE} characters, or too many long ones")
        if not all(map(math.isfinite, self.scores)):
            raise ValueError("the score of a piece is NaN or infinite")
        tokenizer = Tokenizer(self._bpe() if self.model == BPE else self._unigram())
        steps: list[Any] = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        if self.remove_extra_whitespaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        if self.add_dummy_prefix:
            steps.append(normalizers.Prepend("▁"))
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
        undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if self.add_dummy_prefix:
            undo.append(decoders.Strip(" ", 1, 0))
        tokenizer.decoder = decoders.Sequence(undo)
        add_by_kind(tokenizer, self.pieces, self.kinds)
        return tokenizer

    def _bpe(self) -> models.BPE:
        """sentencepiece merges the pair whose joined piece scores best: its merges in that order, as BPE has them.

        Control, unused and byte pieces never come from merging.
        """
        vocab = {piece: i for i, piece in enumerate(self.pieces)}
        kinds = zip(self.pieces, self.kinds, strict=True)
        mergeable = {piece for piece, kind in kinds if kind not in (CONTROL, UNUSED, BYTE)}
        best_first = sorted(zip(self.scores, self.pieces, strict=True), key=lambda item: -item[0])
        merges = [
            (piece[:cut], piece[cut:])
            for _, piece in best_first
            if piece in mergeable
            for cut in range(1, len(piece))
            if piece[:cut] in mergeable and piece[cut:] in mergeable
        ]
        unknown = self.pieces[self.unk_id]
        return models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=self.byte_fallback)

    def _unigram(self) -> models.Unigram:
        vocab = list(zip(self.pieces, self.scores, strict=True))
        return models.Unigram(vocab, unk_id=self.unk_id, byte_fallback=self.byte_fallback)


def add_by_kind(tokenizer: Tokenizer, pieces: list[str], kinds: list[int]) -> None:
    """Makes control pieces special tokens of `tokenizer`, and user-defined ones added tokens."""
    for kind, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        chosen = (piece for piece, its in zip(pieces, kinds, strict=True) if its == kind)
        add([AddedToken(piece, normalized=False) for piece in chosen])


def around(tokenizer: Tokenizer, before: str | None, after: str | None = None) -> None:
    """Lets `tokenizer` put a token before every text, and one after it."""
    first, last = ([] if token is None else [token] for token in (before, after))
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(first + last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *last, *first, "$B", *last], special_tokens=ids
    )


def read_model(path: Path) -> SentencePiece:
    """Reads `tokenizer.model`. Raises SourceError for another kind of file, and for models that cannot be rebuilt."""
    data = read_small_file(path, SourceError, MAX_FILE_BYTES, "a sentencepiece model")
    try:
        model = _model(data)
    except (ValueError, struct.error, UnicodeDecodeError):
        raise SourceError(
            f"{path} is not a sentencepiece model (damaged, or a tiktoken vocabulary); give the folder a tokenizer.json"
        ) from None
    if model.model not in (UNIGRAM, BPE):
        raise SourceError(
            f"{path} is a sentencepiece model of kind {model.model}; Unigram (1) and BPE (2) are supported"
        )
    if not 0 <= model.unk_id < len(model.pieces) or len(set(model.pieces)) < len(model.pieces):
        raise SourceError(f"{path}: its pieces are not unique, or it has no unknown piece")
    refuse_charsmap(model.charsmap, str(path))
    return model


def _model(data: bytes) -> SentencePiece:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(_bytes(value)))
            pieces.append(
                (_bytes(piece.get(1)).decode(), _float(piece.get(2, b"\0\0\0\0")), _int(piece.get(3, NORMAL)))
            )
        elif field == 2:
            trainer = dict(_fields(_bytes(value)))
        elif field == 3:
            normalizer = dict(_fields(_bytes(value)))
    if not pieces or _int(trainer.get(24, 0)):  # 24: spaces end words instead of beginning them
        raise ValueError
    texts, scores, kinds = (list(column) for column in zip(*pieces, strict=True))
    return SentencePiece(
        pieces=texts,
        scores=scores,
        kinds=kinds,
        model=_int(trainer.get(3, UNIGRAM)),
        unk_id=_int(trainer.get(40, 0)),
        bos_id=_int(trainer.get(41, 1)),
        eos_id=_int(trainer.get(42, 2)),
        pad_id=_int(trainer.get(43, -1)),
        byte_fallback=bool(_int(trainer.get(35, 0))),
        add_dummy_prefix=bool(_int(normalizer.get(3, 1))),
        remove_extra_whitespaces=bool(_int(normalizer.get(4, 1))),
        charsmap=_bytes(normalizer.get(2, b"")),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message, in order; the last of equal fields counts. Raises ValueError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError
        if size > len(data) - at:
            raise ValueError
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError


def _bytes(value: int | bytes | None) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError
    return value


def _float(value: int | bytes) -> float:
    return float(struct.unpack("<f", _bytes(value))[0])
