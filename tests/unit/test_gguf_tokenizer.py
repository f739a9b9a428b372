"""Tokenizers rebuilt from GGUF fields give the ids of the tokenizer that the fields were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import pre_tokenizers

from precast.errors import SourceError
from precast.quantize.sources.gguf_tokenizer import tokenizer_files
from precast.quantize.sources.pre_tokenizers import PRE_TOKENIZERS
from precast.quantize.sources.sentencepiece import BYTE, CONTROL, USER_DEFINED
from precast.runtime.text.chat_template import ChatTemplate
from tests.unit.test_tokenizer import TEXTS, byte_level, sentencepiece

CONFIG = {"max_position_embeddings": 100}
NORMAL = 1


def rebuilt(fields: dict[str, Any]) -> RustTokenizer:
    files = tokenizer_files(fields, CONFIG, "m.gguf")
    return RustTokenizer.from_str(json.dumps(files["tokenizer.json"]))


def tokens_of(rust: RustTokenizer) -> list[str]:
    return [rust.id_to_token(i) for i in range(rust.get_vocab_size())]


def sentencepiece_fields(rust: RustTokenizer, **changes: Any) -> dict[str, Any]:
    """Scores as sentencepiece gives them to BPE pieces: the earlier a merge, the higher."""
    definition = json.loads(rust.to_str())
    tokens = tokens_of(rust)
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(definition["model"]["merges"]):
        ranks.setdefault(left + right, rank)
    special = {token["content"] for token in definition["added_tokens"]}
    types = [CONTROL if t in special else BYTE if t.startswith("<0x") else NORMAL for t in tokens]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(ranks.get(token, 1e6)) for token in tokens],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | changes


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool) -> None:
    original = sentencepiece(prefix)
    ours = rebuilt(sentencepiece_fields(original, **{"tokenizer.ggml.add_space_prefix": prefix}))
    for text in TEXTS:
        assert ours.encode(text).ids == original.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids) == original.decode(original.encode(text).ids)


def test_no_bos_where_the_file_says_so() -> None:
    fields = sentencepiece_fields(sentencepiece(True), **{"tokenizer.ggml.add_bos_token": False})
    assert rebuilt(fields).encode("the").ids == sentencepiece(True).encode("the", add_special_tokens=False).ids


def byte_level_fields(pre: str) -> dict[str, Any]:
    rust = byte_level()
    definition = json.loads(rust.to_str())
    kinds = {t["id"]: CONTROL if t["special"] else USER_DEFINED for t in definition["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens_of(rust),
        "tokenizer.ggml.token_type": [kinds.get(i, NORMAL) for i in range(rust.get_vocab_size())],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in definition["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": rust.token_to_id("<|im_start|>"),
    }


def test_byte_level() -> None:
    ours, original = rebuilt(byte_level_fields("smollm")), byte_level()
    for text in TEXTS:
        assert ours.encode(text).ids == original.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("llama-bpe", "I'LL see 12345 foo_bar!?\n\n  x", "I|'LL| see| |123|45| foo|_bar|!?\n\n| | x"),
        ("gpt-2", "I'll see 12345 foo_bar!?", "I|'ll| see| 12345| foo|_|bar|!?"),
        ("qwen2", "I'LL see 12345 foo_bar!?", "I|'LL| see| |1|2|3|4|5| foo|_bar|!?"),
        ("smollm", "see 123", "see| |1|2|3"),
    ],
)
def test_text_is_cut_as_the_original_cuts_it(pre: str, text: str, words: str) -> None:
    decoder = {v: bytes([k]) for k, v in _byte_alphabet().items()}
    pieces = [piece for piece, _ in PRE_TOKENIZERS[pre].make().pre_tokenize_str(text)]
    assert "|".join(b"".join(decoder[c] for c in piece).decode() for piece in pieces) == words


def _byte_alphabet() -> dict[int, str]:
    """Byte → its printable stand-in, asked of the library."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return {byte: level.pre_tokenize_str(chr(byte))[0][0] for byte in range(128)}


def test_llama_3_begins_with_bos_and_keeps_whole_words() -> None:
    fields = byte_level_fields("llama-bpe")
    fields["tokenizer.ggml.merges"] = []  # nothing merges: a word is a token, or its bytes
    bos = fields["tokenizer.ggml.bos_token_id"]
    word = next(t for t in fields["tokenizer.ggml.tokens"] if len(t) > 2 and t.isascii() and t.isalpha())
    assert rebuilt(fields).encode(word).ids == [bos, fields["tokenizer.ggml.tokens"].index(word)]
    assert len(rebuilt(fields).encode(word + "zq").ids) == 1 + len(word) + 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.pre": "poro-chat"}, "'poro-chat'"),
        ({"tokenizer.ggml.tokens": None}, "make no tokenizer"),
        ({"tokenizer.ggml.token_type": [1]}, "make no tokenizer"),
        ({"tokenizer.ggml.merges": ["x y z"]}, "make no tokenizer"),
        ({"tokenizer.ggml.merges": ["xy"]}, "make no tokenizer"),
        ({"tokenizer.ggml.bos_token_id": 10**9}, "bos_token_id is 1000000000, there are"),
        ({"tokenizer.ggml.bos_token_id": -1}, "bos_token_id is -1"),
        ({"tokenizer.ggml.eos_token_id": True}, "eos_token_id is True"),
        ({"tokenizer.ggml.eot_token_id": 10**9}, "eot_token_id is 1000000000"),
        ({"tokenizer.chat_template": "{% for %}"}, "chat template"),
    ],
)
def test_what_makes_no_tokenizer_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(SourceError, match=word):
        tokenizer_files(byte_level_fields("smollm") | change, CONFIG, "m.gguf")


def test_a_token_that_stands_twice_is_refused() -> None:
    fields = byte_level_fields("smollm")
    fields["tokenizer.ggml.tokens"][-1] = fields["tokenizer.ggml.tokens"][-2]
    with pytest.raises(SourceError, match="not unique"):
        tokenizer_files(fields, CONFIG, "m.gguf")


def test_a_score_that_is_no_number_is_refused() -> None:
    fields = sentencepiece_fields(sentencepiece(True))
    fields["tokenizer.ggml.scores"][5] = float("nan")
    with pytest.raises(SourceError, match="score of a piece is NaN"):
        tokenizer_files(fields, CONFIG, "m.gguf")


def test_eos_ends_a_text_where_the_file_says_so() -> None:
    fields = sentencepiece_fields(sentencepiece(True), **{"tokenizer.ggml.add_eos_token": True})
    assert rebuilt(fields).encode("the").ids == [
        *rebuilt(sentencepiece_fields(sentencepiece(True))).encode("the").ids,
        2,
    ]


def test_named_chat_templates_come_along(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    made = tokenizer_files(byte_level_fields("smollm") | {key: "D", f"{key}.tool_use": "T"}, CONFIG, "m.gguf")
    assert "chat_template.jinja" not in made
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(made["tokenizer_config.json"]))
    template = ChatTemplate.from_folder(tmp_path)
    assert template is not None
    assert (template.render([]), template.render([], tools=[{}])) == ("D", "T")
    alone = tokenizer_files(byte_level_fields("smollm") | {key: "D"}, CONFIG, "m.gguf")
    assert alone["chat_template.jinja"] == "D"


def test_a_piece_that_would_be_cut_for_ever_is_refused() -> None:
    fields = sentencepiece_fields(sentencepiece(True))
    fields["tokenizer.ggml.tokens"][-1] = "a" * 100_000
    with pytest.raises(SourceError, match="more than 1024 characters"):
        tokenizer_files(fields, CONFIG, "m.gguf")
