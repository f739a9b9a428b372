"""Hostile tokenizers and chat templates."""

from __future__ import annotations

import json
from typing import Any

from tests.hostile.changes import DEEP, LOOP, TEMPLATE, Change, Hostile, both, file, late, link, pipe, without


def tokenizer(**changes: Any) -> Change:
    """A small tokenizer.json."""
    small: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {"u": 0, "a": 1}, "merges": []},
    }
    return both(file("tokenizer.json", json.dumps(small | changes)), file("tokenizer_config.json", "{}"))


def split(pattern: str) -> Change:
    """One that cuts texts by a regular expression."""
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return tokenizer(pre_tokenizer=step)


def added(*contents: str) -> Change:
    """One with more tokens."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return tokenizer(added_tokens=[{"id": 2 + i, "content": c} | flags for i, c in enumerate(contents)])


def sequence(step: dict[str, Any], times: int) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [step] * times}


def around(ids: int) -> Change:
    """One that puts a token of this many ids around a text."""
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    special = {"u": {"id": "u", "ids": [0] * ids, "tokens": ["u"] * ids}}
    single = [{"SpecialToken": {"id": "u", "type_id": 0}}, *text]
    post = {"type": "TemplateProcessing", "single": single, "pair": text * 2, "special_tokens": special}
    return tokenizer(post_processor=post)


SLOW = "could take for ever"

TOKENIZERS: dict[str, Hostile] = {
    "loops in loops": Hostile(split("(a+)+b"), SLOW),
    "choices in a loop": Hostile(split("(?:a|a)*b"), SLOW),
    "loops one behind the other": Hostile(split("a*a*b"), SLOW),
    "a part that refers to another": Hostile(split(r"(a+)\1"), SLOW),
    "a pattern that calls itself": Hostile(split(r"(?<x>a\g<x>?b)"), SLOW),
    "a pattern that nests": Hostile(split("(?:" * 1000 + "a" + "){0,3}" * 1000), SLOW),
    "a pattern of a megabyte": Hostile(late(lambda: split("[^a&&[^b]]" * 100_000)), SLOW),
    "a pattern behind an escaped key": Hostile(
        both(
            tokenizer(),
            file("tokenizer.json", '{"normal\\u0069zer":{"type":"Replace","pattern":{"Regex":"(a+)+b"},"content":""}}'),
        ),
        "hides the name",
    ),
    "a token of a megabyte": Hostile(late(lambda: added("ab" * 500_000)), "a token of more than"),
    "tokens of megabytes": Hostile(
        late(lambda: added(*(f"{i:01000}" for i in range(4500)))), "adds tokens of more than"
    ),
    "tokens of megabytes in tokenizer_config.json": Hostile(
        both(tokenizer(), file("tokenizer_config.json", json.dumps({"eos_token": "ab" * 500_000}))),
        "a token of more than",
    ),
    "a hundred thousand steps": Hostile(
        tokenizer(normalizer=sequence({"type": "Lowercase"}, 100_000)), "parts of steps"
    ),
    "steps that nest": Hostile(
        file("tokenizer.json", '{"normalizer":' + '{"type":"Sequence","normalizers":[' * DEEP), "too deeply"
    ),
    "a text that grows": Hostile(
        tokenizer(normalizer=sequence({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}, 60)),
        "times as long",
    ),
    "a token of many ids around": Hostile(around(100_000), "in the place of one"),
    "a vocabulary of millions": Hostile(
        late(lambda: tokenizer(model={"type": "BPE", "vocab": {f"{i:x}": i for i in range(710_000)}, "merges": []})),
        "entries",
    ),
    "a piece of a megabyte": Hostile(
        tokenizer(model={"type": "Unigram", "unk_id": 0, "vocab": [["u", 0.0], ["a", -1.0], ["a" * (1 << 20), -2.0]]}),
        "tokens have at most",
    ),
    "a piece of quotation marks": Hostile(
        tokenizer(
            model={"type": "Unigram", "unk_id": 0, "vocab": [["u", 0.0], ["a", -1.0], ['"\\' * (1 << 19), -2.0]]}
        ),
        "tokens have at most",
    ),
    "a piece of thousands": Hostile(
        tokenizer(model={"type": "Unigram", "unk_id": 0, "vocab": [["u", 0.0], ["a", -1.0], ["a" * 3000, -2.0]]}),
        "a token of more than",
    ),
    "words of any length": Hostile(
        tokenizer(
            model={
                "type": "WordPiece",
                "unk_token": "u",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 10**9,
                "vocab": {"u": 0, "a": 1},
            }
        ),
        "cuts words",
    ),
    "a table of characters that ends early": Hostile(
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////wAA"}), "ends before its table"
    ),
}


def protobuf(*fields: tuple[int, bytes]) -> bytes:
    """A message of fields with bytes."""
    return b"".join(varint(number << 3 | 2) + varint(len(data)) + data for number, data in fields)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def sentencepiece(*pieces: str) -> Change:
    """A tokenizer.model of BPE with these pieces, instead of the tokenizer.json."""
    made = [(1, protobuf((1, piece.encode()))) for piece in ("<unk>", *pieces)]
    data = protobuf(*made, (2, varint(3 << 3) + varint(2)))
    return both(without("tokenizer.json"), file("tokenizer.model", data))


def only(name: str, data: bytes) -> Change:
    """This file instead of the tokenizer.json."""
    config = {"tokenizer_class": "GPT2Tokenizer"}
    return both(without("tokenizer.json"), file(name, data), file("tokenizer_config.json", json.dumps(config)))


OLD_TOKENIZERS: dict[str, Hostile] = {
    "sentencepiece of random bytes": Hostile(only("tokenizer.model", bytes(range(256)) * 9), "not a sentencepiece"),
    "sentencepiece with a length of 2^63": Hostile(
        only("tokenizer.model", b"\x0a" + b"\xff" * 8 + b"\x7f"), "not a sent"
    ),
    "sentencepiece with a varint without end": Hostile(only("tokenizer.model", b"\xff" * 1000), "not a sentencepiece"),
    "sentencepiece with pieces that stand twice": Hostile(sentencepiece("a", "a"), "not unique"),
    "sentencepiece with long pieces": Hostile(sentencepiece(*(f"{i:01000}" for i in range(500))), "long ones"),
    "sentencepiece with a piece of a megabyte": Hostile(sentencepiece("a" * (1 << 20)), "a piece of more than"),
    "merges that are a pipe": Hostile(both(only("vocab.json", b'{"a": 0}'), pipe("merges.txt")), "not a regular file"),
    "merges that are a device": Hostile(
        both(only("vocab.json", b'{"a": 0}'), link("merges.txt", "/dev/zero")), "not a regular file"
    ),
    "merges of tokens that are not there": Hostile(
        both(only("vocab.json", b'{"a": 0}'), file("merges.txt", "b c\n")), "makes no tokenizer"
    ),
    "merges of three": Hostile(both(only("vocab.json", b'{"a": 0}'), file("merges.txt", "a b c\n")), "not a pair"),
    "a vocabulary of texts": Hostile(
        both(only("vocab.json", b'{"a": "x"}'), file("merges.txt", "a a\n")), "makes no tokenizer"
    ),
}

TEMPLATES: dict[str, Hostile] = {
    "template that does not end when it compiles": Hostile(file(TEMPLATE, "{{ 7 ** (7 ** 9) }}"), "loop for ever"),
    "template that nests": Hostile(file(TEMPLATE, "{{ " + "(" * 100_000), "valid chat template"),
    "template that is not closed": Hostile(file(TEMPLATE, "{% for x in y %}"), "valid chat template"),
    "template of two megabytes": Hostile(file(TEMPLATE, "x" * (2 << 20)), "larger than"),
    "template that is not UTF-8": Hostile(file(TEMPLATE, b"\xff"), "cannot be read"),
    "named template that is a pipe": Hostile(pipe("additional_chat_templates/a.jinja"), "not a regular file"),
    "named template that is a device": Hostile(
        link("additional_chat_templates/a.jinja", "/dev/zero"), "not a regular file"
    ),
    "template that loops": Hostile(file(TEMPLATE, LOOP), "loop for ever", works=("inspect", "convert")),
    "template that takes memory": Hostile(
        file(TEMPLATE, "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}"),
        "loop for ever",
        works=("inspect", "convert"),
    ),
    "template that calls itself": Hostile(
        file(TEMPLATE, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "too deeply", works=("inspect", "convert")
    ),
    "template that reaches out": Hostile(
        file(TEMPLATE, "{{ ''.__class__.__mro__[1].__subclasses__() }}"), "refused", works=("inspect", "convert")
    ),
}
