"""Text out: the pieces of a stream are the whole, and a stop string cuts it where a naive search says."""

from __future__ import annotations

import codecs

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from precast._native import runtime
from precast.errors import EngineError
from precast.runtime.text.vocab import DROP_LEADING_SPACE, SPECIAL, Vocab

# Pieces that meet inside characters, overlong forms, surrogates, and each other's stop strings.
PIECES = [b"", b" ", b"a", b"b", b"ab", b"aab", "é".encode(), b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f"]
PIECES += [b"\x98\x80", b"\xed\xa0\x80", b"\xc0\x80", b"\xff", b"\xf4\x90\x80\x80", "中文".encode(), b"<s>", b" a"]
FLAGS = [SPECIAL if piece == b"<s>" else 0 for piece in PIECES]
TOKENS = st.lists(st.integers(0, len(PIECES) + 1), max_size=30)  # two ids beyond the table: no bytes
STOPS = st.lists(st.sampled_from(["a", "ab", "aa", "aba", "é", "€", "b a", "文", "😀", "zz"]), max_size=4, unique=True)


def table(options: int = 0) -> runtime.VocabBytes:
    return runtime.VocabBytes.from_bytes(Vocab(PIECES, FLAGS, options).to_bytes())


def bytes_of(token: int, skip_special: bool) -> bytes:
    if token >= len(PIECES) or (skip_special and FLAGS[token] & SPECIAL):
        return b""
    return PIECES[token]


def kept(tokens: list[int], cut: int, skip: bool) -> int:
    """How many tokens stay: those before the first that reaches over the cut, and that one when it begins before."""
    end = 0
    for index, token in enumerate(tokens):
        begin, end = end, end + len(bytes_of(token, skip))
        if end > cut:
            return index + 1 if begin < cut else index
    return len(tokens)


def naive(
    tokens: list[int], stops: list[str], min_tokens: int, skip: bool, include: bool
) -> tuple[str, int, str | None]:
    """(text, tokens kept, stop) by looking at every prefix of the bytes, one byte after the other."""
    seen = b""
    for count, token in enumerate(tokens, 1):
        for byte in bytes_of(token, skip):
            seen += bytes([byte])
            found = [s for s in stops if seen.endswith(s.encode())]
            if not found or count <= min_tokens:
                continue
            stop = max(found, key=lambda s: len(s.encode()))
            text = seen if include else seen[: len(seen) - len(stop.encode())]
            return text.decode(errors="replace"), kept(tokens[:count], len(text), skip), stop
    return seen.decode(errors="replace"), len(tokens), None


@settings(max_examples=500)
@given(
    TOKENS, STOPS, st.integers(0, 6), st.booleans(), st.booleans(), st.lists(st.booleans(), min_size=30, max_size=30)
)
@example([4, 2, 3, 2, 3], ["aba"], 0, True, False, [True] * 30)
@example([4, 2, 3, 2, 3], ["aba"], 0, True, True, [True] * 30)
@example([7, 19, 8], [], 0, True, False, [True] * 30)
def test_pieces_make_the_whole_and_stops_cut(
    tokens: list[int], stops: list[str], min_tokens: int, skip: bool, include: bool, releases: list[bool]
) -> None:
    detokenizer = runtime.Detokenizer(
        table(), stop=stops, include_stop=include, min_tokens=min_tokens, skip_special_tokens=skip
    )
    text, released, found = "", 0, -1
    for token, release in zip(tokens, releases, strict=False):
        found = detokenizer.push(token)
        if found >= 0:
            break
        if release:
            piece, count = detokenizer.release(False)
            text, released = text + piece, released + count
    piece, count = detokenizer.release(True)
    expected = naive(tokens, stops, min_tokens, skip, include)
    assert (text + piece, released + count, stops[found] if found >= 0 else None) == expected


@given(st.lists(st.sampled_from(PIECES), max_size=20))
def test_nothing_is_held_back_but_unfinished_characters(pieces: list[bytes]) -> None:
    detokenizer = runtime.Detokenizer(table())
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        detokenizer.push(PIECES.index(piece))
        expected = decoder.decode(b"" if FLAGS[PIECES.index(piece)] else piece)
        assert detokenizer.release(False)[0] == expected


@given(TOKENS, st.booleans())
def test_a_leading_space_is_dropped_at_the_start_of_a_text_alone(tokens: list[int], at_start: bool) -> None:
    detokenizer = runtime.Detokenizer(table(DROP_LEADING_SPACE), at_start=at_start)
    for token in tokens:
        detokenizer.push(token)
    raw = b"".join(bytes_of(t, True) for t in tokens)
    if at_start and raw.startswith(b" "):
        raw = raw[1:]
    assert detokenizer.release(True)[0] == raw.decode(errors="replace")


@given(st.data())
def test_a_damaged_table_is_an_error_or_another_table(data: st.DataObject) -> None:
    raw = bytearray(Vocab(PIECES, FLAGS, 0).to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    try:
        vocab = runtime.VocabBytes.from_bytes(damaged)
    except EngineError:
        return
    for token in np.linspace(-2, len(vocab) + 1, 30, dtype=int):
        vocab.token_bytes(int(token))
        vocab.is_special(int(token))
