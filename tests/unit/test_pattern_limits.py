"""Regular expressions of tokenizers: those of known models pass, those that some text makes slow do not."""

from __future__ import annotations

import pytest

from precast.quantize.sources.pre_tokenizers import PRE_TOKENIZERS
from precast.runtime.text.pattern_limits import SlowPattern, refuse_slow

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUBLIC = (
    GPT2,
    O200K,
    r" ?[^(\s|[.,!?…。,、।۔،])]+",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"(?=(\d{3})+(?!\d))",
    r"[[:alpha:]]+|\x{41}|[]a]+(?#a comment)",
    " {2,}",
    "▁",
    *(made.pattern for made in PRE_TOKENIZERS.values() if made.pattern is not None),
)


@pytest.mark.parametrize("pattern", PUBLIC)
def test_patterns_of_known_tokenizers_pass(pattern: str) -> None:
    refuse_slow(pattern)


@pytest.mark.parametrize("pattern", ["a*+a*+b", "(?>a*)(?>a*)b", "a*b", "(?:abc){2,9}", "a{2}{3}", "a{,x}", "(?i)a+"])
def test_patterns_without_nested_retries_pass(pattern: str) -> None:
    refuse_slow(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a+)+b", "repeated"),
        ("(a*)*", "repeated"),
        ("(?:a|a)*$", "repeated"),
        ("(?:a?){20}", "repeated"),
        ("a+{2,}", "repeated"),
        ("a*a*b", "one behind the other"),
        ("a*(?:a*b)", "one behind the other"),
        ("a{1,1000}a{1,1000}b", "one behind the other"),
        ("(?=a*a*b)c", "one behind the other"),
        (r"(a)\1", "refers"),
        (r"(?<x>a)\k<x>", "refers"),
        (r"(?<x>a\g<x>)", "refers"),
        ("(?~ab)", "unknown kind"),
        ("(?x) #(", "unknown kind"),
        ("(?(1)a|b)", "unknown kind"),
        ("(*FAIL)", "callout"),
        ("(", "too few"),
        (")", "too many"),
        ("[a", "without an end"),
        ("a\\", "backslash"),
        ("(" * 60 + ")" * 60, "deep"),
        ("[" * 60 + "]" * 60, "deep"),
        ("a" * 20_000, "characters"),
    ],
)
def test_patterns_that_some_text_makes_slow_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(SlowPattern, match=why):
        refuse_slow(pattern)
