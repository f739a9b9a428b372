"""The engine's `vocab_bytes` section: the bytes of every token, so that the core can make text without a tokenizer."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as RustTokenizer

from precast.errors import SourceError
from precast.runtime.text.tokenizer import Tokenizer

SPECIAL = 1
"""Flag: not part of the text unless asked for."""

STRIP_LEADING_SPACE = 1
"""Option: drop one leading space of the whole text."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")

# Texts that meet digits, runs of spaces, accents, scripts without spaces, emoji of several code points, and controls.
CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "  def f(x):\n\treturn x + 1234567  # naïve\n\n",
    "你好,世界。مرحبا بالعالم नमस्ते",
    "🙂👩‍👩‍👧 café e\u0301 \u00a0\u2003x",
    "a\x01b\x7f<|nothing|> </s> don't it's",
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
        if self.options & STRIP_LEADING_SPACE and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", errors="replace")


def section(folder: Path, size: int) -> bytes:
    """The section for the tokenizer in `folder` and a model of `size` ids, checked against the tokenizer on a corpus.

    Raises SourceError when the tokenizer has more tokens than the model, a decoder that bytes cannot express, or
    decodes a text of the corpus differently.
    """
    tokenizer = Tokenizer.from_folder(folder)
    vocab = read_vocab(folder / "tokenizer.json", size)
    for text in CORPUS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if vocab.text(ids) != tokenizer.decode(ids):
            raise SourceError(
                f"{folder / 'tokenizer.json'} cannot be expressed as bytes of tokens: {text!r} comes back as "
                f"{vocab.text(ids)!r}, the tokenizer says {tokenizer.decode(ids)!r}"
            )
    return vocab.to_bytes()


def read_vocab(path: Path, size: int) -> Vocab:
    """Bytes of tokens from a tokenizer.json with a byte-level or a sentencepiece-like decoder."""
    definition = json.loads(path.read_bytes())
    rust = RustTokenizer.from_file(str(path))
    decoders = _decoders(definition.get("decoder"))
    kinds = [d.get("type") for d in decoders]
    if "ByteLevel" in kinds:
        to_bytes, options = _byte_level, 0
    elif "Metaspace" in kinds or "ByteFallback" in kinds or "Replace" in kinds:
        to_bytes = _sentencepiece
        strips = any(d.get("type") == "Strip" and d.get("start") for d in decoders)
        strips |= any(d.get("type") == "Metaspace" and d.get("prepend_scheme", "always") != "never" for d in decoders)
        options = STRIP_LEADING_SPACE if strips else 0
    else:
        raise SourceError(f"{path} has a decoder that precast does not know: {kinds}")
    vocab = rust.get_vocab(with_added_tokens=True)
    if vocab and max(vocab.values()) >= size:
        raise SourceError(f"{path} has token ids up to {max(vocab.values())}, the model has {size}")
    tokens, flags = [b""] * size, [0] * size
    for token, index in vocab.items():
        tokens[index] = to_bytes(token)
    for added in definition.get("added_tokens", []):
        index = added["id"]
        tokens[index] = added["content"].encode()
        flags[index] = SPECIAL if added.get("special") else 0
    return Vocab(tokens, flags, options)


def _decoders(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    return list(decoder.get("decoders", [])) if decoder.get("type") == "Sequence" else [decoder]


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


def _sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.match(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()
