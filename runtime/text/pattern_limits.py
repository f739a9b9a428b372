"""Regular expressions of a tokenizer that no text makes slow.

The library's engine (Oniguruma) backtracks: `(a+)+b` takes time that doubles with every letter, and `a*a*b` the cube of
their number. The engine gives up a single attempt to match after ten million steps, which bounds neither the attempts
of a text nor what a text of many such parts takes. So a pattern is read here, and refused when what may be retried is
more than one loop: all tokenizers of known models stay below that.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHARACTERS = 10_000
"""Real patterns take up to 600."""

MAX_DEPTH = 50

MAX_LOOPS = 1
"""Loops in a row that a failure behind them makes the engine try again in all their lengths."""

FEW = 16
"""A repetition of at most this many, without choices inside, is no loop."""


class SlowPattern(ValueError):
    """The message says what in a pattern makes it slow, or that it cannot be judged."""


def refuse_slow(pattern: str) -> None:
    """Raises SlowPattern for a pattern that some text makes slow, and for one with constructs that are not known."""
    if len(pattern) > MAX_CHARACTERS:
        raise SlowPattern(f"it has more than {MAX_CHARACTERS} characters")
    reader = _Reader(pattern)
    whole = reader.alternatives(0)
    if reader.at < len(pattern):
        raise SlowPattern("it has a parenthesis too many")
    if whole.retries > MAX_LOOPS:
        raise SlowPattern("loops stand one behind the other, and what follows them may fail")


@dataclass(frozen=True)
class _Part:
    """What matching a part of a pattern may cost.

    `loops`: loops whose lengths the engine chooses, and may choose again when what follows fails. `choices`: there is
    more than one way to match some text. `fails`: it does not match everywhere. `retries`: loops that are tried in all
    lengths before the part itself fails.
    """

    loops: int = 0
    choices: bool = False
    fails: bool = True
    retries: int = 0


_ONE = _Part()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def alternatives(self, depth: int) -> _Part:
        """Up to a closing parenthesis or the end."""
        if depth > MAX_DEPTH:
            raise SlowPattern(f"it nests more than {MAX_DEPTH} deep")
        branches = [self.sequence(depth)]
        while self.take("|"):
            branches.append(self.sequence(depth))
        return _Part(
            loops=max(b.loops for b in branches),
            choices=len(branches) > 1 or branches[0].choices,
            fails=all(b.fails for b in branches),
            retries=max(b.retries for b in branches),
        )

    def sequence(self, depth: int) -> _Part:
        loops, retries, choices, fails = 0, 0, False, False
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            part = self.repeated(depth)
            retries = max(retries, part.retries + (loops if part.fails else 0))
            loops += part.loops
            choices |= part.choices
            fails |= part.fails
        return _Part(loops, choices, fails, retries)

    def repeated(self, depth: int) -> _Part:
        part = self.atom(depth)
        while (times := self.quantifier()) is not None:
            least, most, backtracks = times
            part = _times(part, least, most)
            if not backtracks:
                part = _Part(0, False, part.fails, max(part.retries, part.loops))
        return part

    def quantifier(self) -> tuple[int, float, bool] | None:
        """(least, most, whether it gives back what it took); None when there is none."""
        start = self.at
        if self.take("*"):
            least, most = 0, float("inf")
        elif self.take("+"):
            least, most = 1, float("inf")
        elif self.take("?"):
            least, most = 0, 1.0
        elif (found := self.interval()) is not None:
            self.take("?")
            return (*found, True)
        else:
            self.at = start
            return None
        if self.take("+"):
            return least, most, False
        self.take("?")
        return least, most, True

    def interval(self) -> tuple[int, float] | None:
        """`{2}`, `{2,}`, `{,5}`, `{2,5}`; other braces stand for themselves."""
        end = self.pattern.find("}", self.at)
        if self.at >= len(self.pattern) or self.pattern[self.at] != "{" or end < 0:
            return None
        low, comma, high = self.pattern[self.at + 1 : end].partition(",")
        digits = all(not text or (text.isascii() and text.isdigit() and len(text) < 7) for text in (low, high))
        if not digits or not (low or high):
            return None
        self.at = end + 1
        least = int(low or 0)
        return least, least if not comma else int(high) if high else float("inf")

    def atom(self, depth: int) -> _Part:
        c = self.pattern[self.at]
        if c == "(":
            return self.group(depth)
        if c == "[":
            self.character_class(depth)
        elif c == "\\":
            self.escape()
        else:
            self.at += 1
        return _ONE

    def group(self, depth: int) -> _Part:
        self.at += 1
        if self.take("*"):
            raise SlowPattern("it has a callout")
        kind = ""
        if self.take("?"):
            kind = next((k for k in ("<=", "<!", "=", "!", ">", ":", "<", "'", "#") if self.take(k)), "options")
        if kind == "#":
            self.skip_to(")")
            return _Part(fails=False)
        if kind in ("<", "'"):
            self.skip_to(">" if kind == "<" else "'")
        if kind == "options" and not self.options():
            return _Part(fails=False)  # they hold from here to the end of the group around
        inner = self.alternatives(depth + 1)
        if not self.take(")"):
            raise SlowPattern("it has a parenthesis too few")
        if kind in ("<=", "<!", "=", "!", ">"):  # what matched inside is not tried again
            return _Part(0, False, True, inner.retries)
        return inner

    def options(self) -> bool:
        """`i-m:` → True, a group follows; `i)` → False."""
        start = self.at
        while self.at < len(self.pattern) and self.pattern[self.at] in "im-":
            self.at += 1
        if self.take(":"):
            return True
        if self.at > start and self.take(")"):
            return False
        raise SlowPattern(f"it has a group of an unknown kind at character {start}")

    def character_class(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SlowPattern(f"it nests more than {MAX_DEPTH} deep")
        self.at += 1
        self.take("^")
        self.take("]")  # as the first character it stands for itself
        while not self.take("]"):
            if self.at >= len(self.pattern):
                raise SlowPattern("it has a character class without an end")
            if self.pattern.startswith("[:", self.at):
                self.skip_to(":]")
            elif self.pattern[self.at] == "[":
                self.character_class(depth + 1)
            elif self.pattern[self.at] == "\\":
                self.escape()
            else:
                self.at += 1

    def escape(self) -> None:
        c = self.pattern[self.at + 1 : self.at + 2]
        if not c:
            raise SlowPattern("it ends in a backslash")
        if c in "kg123456789":
            raise SlowPattern("it refers to what another part of it matched")
        self.at += 2
        if c in "pPxo" and self.pattern.startswith("{", self.at):
            self.skip_to("}")

    def skip_to(self, end: str) -> None:
        found = self.pattern.find(end, self.at)
        if found < 0:
            raise SlowPattern(f"it lacks a {end!r}")
        self.at = found + len(end)

    def take(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True


def _times(part: _Part, least: int, most: float) -> _Part:
    """The part, repeated."""
    if most <= 1:
        return _Part(part.loops, True, part.fails and least > 0, part.retries)
    if part.choices or part.loops:
        raise SlowPattern("a part with choices or loops of its own is repeated")
    if least == most or most <= FEW:
        return _Part(part.loops, part.choices or least != most, part.fails and least > 0, part.retries)
    return _Part(1, True, part.fails and least > 0, part.retries)
