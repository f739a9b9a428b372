"""What a tokenizer.json may not ask for: files from outside that would abort the process or blow up a text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

from precast.errors import SourceError

MAX_GROWTH = 10_000
"""How much longer a text may become before and after tokens: real ones have up to 216 (normalization, then spaces)."""

MAX_SURROUNDING = 64
"""Special tokens around a text."""

# A letter of a key or a type is escaped by nobody who means well.
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")


def refuse_abort(data: bytes, where: str) -> None:
    """Raises SourceError for a table of characters that the library would allocate without bound (and abort).

    Looks into the JSON only where the file mentions such a table: parsing a large one takes as long as loading it.
    """
    if b"recompiled" not in data and not _ESCAPED_LETTER.search(data):
        return
    try:
        definition = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where} is not a tokenizer: {error}") from None
    for part in _parts(definition.get("normalizer") if isinstance(definition, dict) else None):
        if isinstance(table := part.get("precompiled_charsmap"), str):
            try:
                refuse_charsmap(base64.b64decode(table, validate=True), where)
            except ValueError:
                raise SourceError(f"{where} has a precompiled_charsmap that is not base64") from None


def refuse_charsmap(table: bytes, where: str) -> None:
    """Raises SourceError when sentencepiece's table of characters does not hold the trie that its head announces."""
    if table and (len(table) < 4 or int.from_bytes(table[:4], "little") > len(table) - 4):
        raise SourceError(f"{where} has a precompiled_charsmap that ends before its table does")


def refuse_growth(rust: Any, where: str) -> None:
    """Raises SourceError when the steps of a loaded tokenizer, one after the other, could blow up a text."""
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


def _texts(template: list[Any]) -> int:
    return sum(isinstance(part, dict) and "Sequence" in part for part in template)


def _definition(step: Any) -> Any:
    return None if step is None else json.loads(step.__getstate__())


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value. The library allows a depth of 128."""
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
