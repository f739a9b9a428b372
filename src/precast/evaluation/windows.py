"""The windows of tokens that models are measured on: the same for every form of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precast.errors import PrecastError
from precast.runtime.text.tokenizer import Tokenizer

DEFAULT_WINDOW = 512
DEFAULT_WINDOWS = 20

SHORTEST_WINDOW = 2
"""A token, and one that is predicted from it."""

LOOK_AHEAD = 64
"""Tokens behind those that are used, so that where the text is cut changes none of these."""


@dataclass(frozen=True)
class Windows:
    """Windows of token ids. Of each, every token is predicted from those before it in the window; its first is not."""

    windows: list[list[int]]
    start: list[int]
    """What each begins with: the tokens that the tokenizer puts before a text (BOS), or none."""

    @property
    def predicted(self) -> int:
        """Tokens that are predicted, in all windows together."""
        return sum(len(window) - 1 for window in self.windows)

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return max(map(len, self.windows))

    @property
    def text_ids(self) -> list[int]:
        """All tokens of the text, in order, without `start`."""
        return [token for window in self.windows for token in window[len(self.start) :]]


def cut(ids: Sequence[int], start: Sequence[int], window: int, most: int) -> Windows:
    """Cuts the tokens of a text into at most `most` windows of `window` tokens each, `start` included, one behind the
    other without overlap. The last one may be shorter; a rest in which nothing could be predicted is left out.

    Raises PrecastError when there is no window.
    """
    each = window - len(start)
    if each < 1 or window < SHORTEST_WINDOW:
        raise PrecastError(f"a window of {window} tokens is too short; give one of {len(start) + 1} tokens at least")
    found = [[*start, *ids[at : at + each]] for at in range(0, len(ids), each)[:most]]
    found = [tokens for tokens in found if len(tokens) >= SHORTEST_WINDOW]
    if not found:
        raise PrecastError("the text has too few tokens to predict one; give a longer text")
    return Windows(found, list(start))


def windows_of(text: Path, tokenizer: Tokenizer, window: int = DEFAULT_WINDOW, most: int = DEFAULT_WINDOWS) -> Windows:
    """The windows of a text file, which is encoded as one text without special tokens.

    Raises PrecastError when it is no UTF-8 text, or too short.
    """
    start = tokens_before_text(tokenizer)
    need = most * max(1, window - len(start)) + LOOK_AHEAD
    characters = 8 * need
    while True:
        read = _read(text, characters)
        ids = tokenizer.encode(read, add_special_tokens=False)
        if len(ids) >= need or len(read) < characters:
            break
        characters *= 2  # long tokens; a file may be much larger than what is asked for, and is not read then
    try:
        return cut(ids, start, window, most)
    except PrecastError as error:
        raise PrecastError(f"{text}: {error}") from None


def tokens_before_text(tokenizer: Tokenizer) -> list[int]:
    """The special tokens that the tokenizer puts before a text (BOS), where it does."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a", add_special_tokens=True)
    at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    return whole[:at]


def _read(path: Path, characters: int) -> str:
    if not path.is_file():
        raise PrecastError(f"{path} {'is not a file' if path.exists() else 'does not exist'}; give a text file")
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read(characters)
    except UnicodeDecodeError as error:
        raise PrecastError(f"{path} is not UTF-8 text ({error.reason}); convert it, for example with iconv") from None
