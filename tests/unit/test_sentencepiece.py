"""`tokenizer.model` files give the ids and the text that sentencepiece gives; what is no such file is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from precast.errors import SourceError
from precast.quantize.sources.sentencepiece import read_model
from tests.unit.test_tokenizer import TEXTS

LINES = [
    *TEXTS[:4],
    "the lazy dog and the quick fox",
    "over and over again, the end",
    "x = 1234 + 5678",
    "你好世界",
] * 20

# As Llama's, Gemma's (spaces are never put in front), and sentencepiece's own defaults, which normalize.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "remove_extra_whitespaces": False}
    | {"normalization_rule_name": "identity"},
    "gemma": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, "remove_extra_whitespaces": False}
    | {"normalization_rule_name": "identity", "user_defined_symbols": ["<tool>"]},
    "unigram": {"model_type": "unigram", "byte_fallback": True},
    "unigram, spaces kept": {"model_type": "unigram", "byte_fallback": True, "remove_extra_whitespaces": False},
    "normalizing": {"model_type": "bpe", "byte_fallback": True, "pad_id": 3, "control_symbols": ["<turn>"]},
}


def trained(options: dict[str, Any]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=400,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return model.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text_are_sentencepieces(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(KINDS[kind]))
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    model = read_model(path)
    tokenizer = model.tokenizer()
    for text in (*TEXTS, *LINES[:8], "two  spaces ", " x<tool>y", "ＡＢＣ\u3000ﬁ ½"):
        # Control tokens in a text: sentencepiece sees characters, transformers tokens.
        if "<s>" in text or "</s>" in text:
            continue
        if model.charsmap and "\r\n" in text:  # one grapheme, of which `tokenizers` (and transformers) makes one space
            continue
        ids = original.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        assert tokenizer.decode(ids) == original.decode(ids)
    assert (model.bos_id, model.eos_id, model.pad_id) == (original.bos_id(), original.eos_id(), original.pad_id())
    assert tokenizer.encode("</s>", add_special_tokens=False).ids[-1] == original.eos_id()


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def pieces(*texts: str) -> bytes:
    return b"".join(field(1, field(1, text.encode())) for text in texts)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "not a sentencepiece model"),
        (b"IQ== 0\nIg== 1\n", "tiktoken"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not a sentencepiece model"),
        (b"\x80" * 100, "not a sentencepiece model"),
        (field(1, field(1, b"\xff")), "not a sentencepiece model"),
        (field(1, 7), "not a sentencepiece model"),
        (pieces("a") + field(2, field(24, 1)), "not a sentencepiece model"),
        (pieces("a") + field(2, field(3, 4)), "kind 4"),
        (pieces("a", "a"), "not unique"),
        (pieces("a") + field(2, field(40, 1)), "no unknown piece"),
    ],
)
def test_what_is_no_model_is_refused(data: bytes, word: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(SourceError, match=word):
        read_model(tmp_path / "tokenizer.model")


def test_a_missing_or_huge_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        read_model(tmp_path / "tokenizer.model")
    with open(tmp_path / "tokenizer.model", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(SourceError, match="larger than 64 MiB"):
        read_model(tmp_path / "tokenizer.model")


@pytest.fixture(scope="module")
def whole() -> bytes:
    return trained(KINDS["llama"])


@settings(max_examples=200)
@given(data=st.data())
@example(data=None)
def test_a_damaged_model_is_an_error_or_another_model(
    data: st.DataObject | None, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(whole)
    if data is not None:
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        raw = raw[: data.draw(st.integers(len(raw) // 2, len(raw)))]
    path = tmp_path_factory.getbasetemp() / "damaged.model"
    path.write_bytes(raw)
    try:
        read_model(path)
    except SourceError:
        assert data is not None
