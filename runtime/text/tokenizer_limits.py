"""What a tokenizer.json may not ask for: files from outside that would take the library minutes or gigabytes, abort the
process, or blow up a text.

The limits are a few times what the largest known tokenizers (Gemma 3's, gpt-oss's, those with audio tokens) need.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

from precast.errors import SourceError
from precast.runtime.text.pattern_limits import SlowPattern, refuse_slow

MAX_BYTES = 96 << 20
MAX_ENTRIES = 700_000
"""Names with values: Gemma 3's vocabulary has 262,144."""
MAX_VALUES = 3_000_000
"""Gemma 3 has 1.3 million: two for each merge."""

STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_STEP_BYTES = 4 << 20
"""The largest are tables of characters, of 400 kB."""
MAX_PARTS = 10_000
"""Objects that the steps are made of."""

MAX_ADDED_BYTES = 48 << 20
MAX_ADDED_CHARACTERS = 4 << 20
"""Of all added tokens together: the library makes an automaton of them."""

MAX_TOKEN = 1024
"""Characters. The longest known are runs of 128 spaces."""

MAX_GROWTH = 10_000
"""How much longer a text may become before and after tokens: real ones have up to 216 (normalization, then spaces)."""

MAX_SURROUNDING = 64
"""Special tokens around a text."""

LONG = 4096
"""Bytes without a quotation mark: more than a token takes. Of twice as many they are always found."""

_VALUE = re.compile(rb"\s*:\s*(?=[\[{])")

# A key with an escaped letter, whose value is an object or a list: written by nobody who means well.
_HIDDEN_KEY = re.compile(rb'\\u00[4-7][0-9A-Fa-f](?:[^"\\]|\\.){0,200}"\s*:\s*[\[{]')


def refuse_before_loading(data: bytes, where: str) -> None:
    """Raises SourceError for a tokenizer.json that the library should not even load.

    All but the model is read here; of the model, which is nearly all of a large file, values are counted. What is not
    JSON is left to the library, whose message is the better one.
    """
    if data.count(b":") > MAX_ENTRIES or data.count(b",") > MAX_VALUES:
        raise SourceError(f"{where} holds more than {MAX_ENTRIES} entries or {MAX_VALUES} values: not a tokenizer")
    if b"\\u00" in data and _HIDDEN_KEY.search(data):
        raise SourceError(f"{where} hides the name of a setting behind escapes; it is refused")
    parts, read = 0, []
    for key in STEPS:
        for value, span in _values(data, key, MAX_STEP_BYTES, where):
            read.append(span)
            for part in _parts(value):
                _refuse_part(part, where)
                parts += 1
                if parts > MAX_PARTS:
                    raise SourceError(f"{where} changes texts in more than {MAX_PARTS} parts of steps; it is refused")
    added = [t for tokens, _ in _values(data, "added_tokens", MAX_ADDED_BYTES, where) for t in _parts(tokens)]
    refuse_long(map(_content, added), where)
    _refuse_long_strings(data, read, where)


def _refuse_long_strings(data: bytes, read: list[tuple[int, int]], where: str) -> None:
    """Outside the ranges that were `read` a string is a token: the library overflows its stack over long ones."""
    begin = 0
    for start, end in (*sorted(read), (len(data), len(data))):
        rest = data[begin:start].replace(b"\\\\", b"xx").replace(b'\\"', b"xx")
        if any(rest.find(b'"', at, at + LONG) < 0 for at in range(0, len(rest) - LONG, LONG)):
            raise SourceError(f"{where} is not a tokenizer whose tokens have at most {MAX_TOKEN} characters")
        begin = end


def refuse_long(tokens: Iterator[str], where: str) -> None:
    """Raises SourceError for a token that is too long, or tokens that are too long together."""
    total = 0
    for token in tokens:
        total += len(token)
        if len(token) > MAX_TOKEN:
            raise SourceError(f"{where} has a token of more than {MAX_TOKEN} characters ({token[:40]!r}…)")
        if total > MAX_ADDED_CHARACTERS:
            raise SourceError(f"{where} adds tokens of more than {MAX_ADDED_CHARACTERS} characters together")


def refuse_charsmap(table: bytes, where: str) -> None:
    """Raises SourceError when sentencepiece's table of characters does not hold the trie that its head announces: the
    library would allocate without bound, and abort."""
    if table and (len(table) < 4 or int.from_bytes(table[:4], "little") > len(table) - 4):
        raise SourceError(f"{where} has a precompiled_charsmap that ends before its table does")


def refuse_growth(rust: Any, where: str) -> None:
    """Raises SourceError when the steps of a loaded tokenizer, one after the other, could blow up a text, or when its
    model would take the square of a text's length."""
    for names in (("normalizer", "pre_tokenizer"), ("decoder",)):
        growth = 1.0
        for part in (part for name in names for part in _parts(_definition(getattr(rust, name)))):
            growth *= _growth(part)
        if growth > MAX_GROWTH:
            raise SourceError(f"{where} could make a text {growth:.0e} times as long in its {names[0]}; it is refused")
    for part in _parts(_definition(rust.post_processor)):
        single = part.get("single")
        if isinstance(single, list) and (_texts(single) != 1 or len(single) > MAX_SURROUNDING):
            raise SourceError(f"{where} puts a text {_texts(single)} times among {len(single)} parts; it is refused")
    # Unigram follows the longest token at each character, WordPiece tries all parts of a word.
    if type(rust.model).__name__ == "Unigram":
        refuse_long((token for token in rust.get_vocab(with_added_tokens=False) if len(token) > MAX_TOKEN), where)
    if getattr(rust.model, "max_input_chars_per_word", 0) > MAX_TOKEN:
        raise SourceError(f"{where} cuts words of more than {MAX_TOKEN} characters into pieces; it is refused")


def _values(data: bytes, key: str, most: int, where: str) -> Iterator[tuple[Any, tuple[int, int]]]:
    """The lists and objects of a key, and where they stand. An entry of a vocabulary has a number, and is none."""
    name, at = f'"{key}"'.encode(), 0
    while (at := data.find(name, at)) >= 0:
        at += len(name)
        if (found := _VALUE.match(data, at)) is None:
            continue
        text = data[found.end() : found.end() + most].decode("utf-8", "replace")
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except RecursionError:
            raise SourceError(f"{where} nests its {key} too deeply") from None
        except ValueError:
            if found.end() + most < len(data):
                raise SourceError(f"{where} has {key} of more than {most >> 20} MiB, or not JSON") from None
            return
        at = found.end() + len(text[:end].encode())
        yield value, (found.end(), at)


def _refuse_part(part: dict[str, Any], where: str) -> None:
    if isinstance(table := part.get("precompiled_charsmap"), str):
        try:
            refuse_charsmap(base64.b64decode(table, validate=True), where)
        except ValueError:
            raise SourceError(f"{where} has a precompiled_charsmap that is not base64") from None
    if isinstance(pattern := part.get("Regex"), str):
        try:
            refuse_slow(pattern)
        except SlowPattern as error:
            raise SourceError(
                f"{where} has a regular expression that could take for ever, {pattern[:80]!r}: {error}"
            ) from None
    if isinstance(ids := part.get("ids"), list) and len(ids) > MAX_SURROUNDING:
        raise SourceError(f"{where} puts {len(ids)} tokens in the place of one around a text; it is refused")


def _content(token: dict[str, Any]) -> str:
    return str(token.get("content", ""))


def _texts(template: list[Any]) -> int:
    return sum(isinstance(part, dict) and "Sequence" in part for part in template)


def _definition(step: Any) -> Any:
    return None if step is None else json.loads(step.__getstate__())


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _growth(part: dict[str, Any]) -> float:
    """The most bytes that a step makes of one."""
    match part.get("type"):
        case "Replace":
            found = part.get("pattern", {}).get("String", "")
            return max(1.0, len(str(part.get("content", "")).encode()) / max(1, len(found.encode())))
        case "Precompiled" | "NFKC" | "NFKD":
            return 18.0
        case "NFD" | "NFC" | "BertNormalizer" | "Metaspace":
            return 3.0
        case "ByteLevel" | "Lowercase":
            return 2.0
    return 1.0
