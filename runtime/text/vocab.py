"""The engine's `vocab_bytes` section: the bytes of every token, so that the core can make text without a tokenizer."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precast.errors import RequestError, SourceError
from precast.runtime.text.tokenizer import Tokenizer

SPECIAL = 1
"""Flag: not part of the text unless asked for."""

DROP_LEADING_SPACE = 1
"""Option: drop one leading space of the whole text."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")

# Texts that meet digits, runs of spaces, accents, scripts without spaces, emoji of several code points, and controls.
CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "  def f(x):\n\treturn x + 1234567  # naïve\n\n",
    "你好,世界。مرحبا بالعالم नमस्ते",
    "🙂👩‍👩‍👧 café e\u0301 \u00a0\u2003x",
    "a\x01b\x7f<|nothing|> </s> don't it's ▁x <0x41>",
)


@dataclass(frozen=True)
class Vocab:
    """Bytes and flags of every id 0 … V−1 (ids without a token: no bytes), and options of the whole text."""

    tokens: list[bytes]
    flags: list[int]
    options: int

    def to_bytes(self) -> bytes:
        """The section: u32 V, u32 options, u32 offsets[V + 1], bytes, u8 flags[V]."""
        offsets = np.zeros(len(self.tokens) + 1, "<u4")
        offsets[1:] = np.cumsum([len(t) for t in self.tokens])
        head = struct.pack("<II", len(self.tokens), self.options)
        return head + offsets.tobytes() + b"".join(self.tokens) + bytes(self.flags)

    def text(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of ids as the core makes it: the naive form, for checks."""
        kept = (self.tokens[i] for i in ids if not (skip_special_tokens and self.flags[i] & SPECIAL))
        raw = b"".join(kept)
        if self.options & DROP_LEADING_SPACE and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", errors="replace")


def section(folder: Path, size: int) -> bytes:
    """The section for the tokenizer in `folder` and a model of `size` ids, checked against the tokenizer.

    Raises SourceError when the tokenizer has more tokens than the model, a decoder that bytes cannot express, or
    decodes an added token or a text of the corpus differently.
    """
    tokenizer = Tokenizer.from_folder(folder)
    vocab = read_vocab(folder, size, tokenizer)
    try:
        if max(around := tokenizer.encode("a"), default=0) >= size:
            raise SourceError(
                f"{folder / 'tokenizer.json'} puts token {max(around)} around texts, the model has {size}"
            )
        _check(vocab, tokenizer, str(folder / "tokenizer.json"))
    except RequestError as error:
        raise SourceError(f"{folder / 'tokenizer.json'} does not work: {error}") from None
    return vocab.to_bytes()


def read_vocab(folder: Path, size: int, tokenizer: Tokenizer | None = None) -> Vocab:
    """Bytes of tokens from a tokenizer.json with a byte-level, a sentencepiece-like, or a WordPiece decoder."""
    path = folder / "tokenizer.json"
    rust = (tokenizer or Tokenizer.from_folder(folder)).rust
    to_bytes, options = _decoder(None if rust.decoder is None else json.loads(rust.decoder.__getstate__()), str(path))
    vocab = rust.get_vocab(with_added_tokens=True)
    if vocab and max(vocab.values()) >= size:
        raise SourceError(f"{path} has token ids up to {max(vocab.values())}, the model has {size}")
    tokens, flags = [b""] * size, [0] * size
    for token, index in vocab.items():
        tokens[index] = to_bytes(token)
    for index, added in rust.get_added_tokens_decoder().items():
        flags[index] = SPECIAL if added.special else 0
    return Vocab(tokens, flags, options)


def _check(vocab: Vocab, tokenizer: Tokenizer, where: str) -> None:
    lines = [(tokenizer.encode(text, add_special_tokens=False), True) for text in CORPUS]
    # One added token between two others, so that rules for the first token of a text do not hide what it is.
    around = tokenizer.encode("a b", add_special_tokens=False)
    lines += [([*around, index, *around], False) for index in tokenizer.rust.get_added_tokens_decoder()]
    for ids, skip in lines:
        ours, theirs = vocab.text(ids, skip), tokenizer.decode(ids, skip)
        if ours != theirs:
            raise SourceError(
                f"{where} cannot be expressed as bytes of tokens: the tokens {ids} come back as {ours!r}, the "
                f"tokenizer says {theirs!r}; please report this tokenizer"
            )


def _decoder(definition: Any, where: str) -> tuple[Callable[[str], bytes], int]:
    """The decoder of a tokenizer.json → (bytes of a token, options)."""
    steps = definition.get("decoders") if isinstance(definition, dict) else None
    steps = steps if isinstance(steps, list) else [definition]
    by_kind = {step.get("type"): step for step in steps if isinstance(step, dict)}
    if "ByteLevel" in by_kind:
        return _byte_level, 0
    if by_kind.keys() == {"WordPiece"}:
        prefix, cleanup = by_kind["WordPiece"].get("prefix", "##"), by_kind["WordPiece"].get("cleanup", True)
        return lambda token: _word_piece(token, prefix, cleanup), DROP_LEADING_SPACE
    if not by_kind.keys() & {"Metaspace", "ByteFallback", "Replace"}:
        raise SourceError(
            f"{where} has a decoder that precast does not know ({', '.join(map(str, by_kind)) or 'none'}); byte-level, "
            "sentencepiece and WordPiece decoders are supported"
        )
    strips = bool(by_kind.get("Strip", {}).get("start"))
    strips |= "Metaspace" in by_kind and by_kind["Metaspace"].get("prepend_scheme", "always") != "never"
    falls_back = "ByteFallback" in by_kind
    return lambda token: _sentencepiece(token, falls_back), DROP_LEADING_SPACE if strips else 0


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the others from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(0x100 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    if all(c in _ALPHABET for c in token):
        return bytes(_ALPHABET[c] for c in token)
    return token.encode()


def _sentencepiece(token: str, falls_back: bool) -> bytes:
    if falls_back and (match := _BYTE_TOKEN.match(token)):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()


# What the WordPiece decoder makes of a token when it cleans up.
_CLEANED = {
    " .": ".",
    " ?": "?",
    " !": "!",
    " ,": ",",
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " do not": " don't",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}


def _word_piece(token: str, prefix: str, cleanup: bool) -> bytes:
    """A word begins with a space, unless it is cleaned up; what goes on with a word has a prefix instead."""
    text = token.removeprefix(prefix) if token.startswith(prefix) else " " + token
    for before, after in _CLEANED.items() if cleanup else ():
        text = text.replace(before, after)
    return text.encode()
