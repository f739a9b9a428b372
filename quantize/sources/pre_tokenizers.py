"""How byte-level tokenizers cut text before they merge: the pre-tokenizers of the original tokenizer.json files, by the
names that GGUF has for them (tokenizer.ggml.pre)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers


def _words(digits: str) -> str:
    """Contractions, words with what stands before them, digits, signs, ends of lines, other spaces."""
    return "|".join(
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            digits,
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    )


@dataclass(frozen=True)
class PreTokenizer:
    """`pattern`: a regular expression of the pieces (None: GPT-2's own). `nfc`: texts are normalized to NFC before."""

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False  # a word that is a token stays whole
    nfc: bool = False

    def make(self, add_prefix_space: bool = False) -> Any:
        """The pre-tokenizer, down to printable bytes."""
        level = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=self.pattern is None)
        before: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if self.single_digits else []
        if self.pattern is not None:
            before.append(pre_tokenizers.Split(Regex(self.pattern), "isolated"))
        return pre_tokenizers.Sequence([*before, level]) if before else level


PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(single_digits=True),
    "llama-bpe": PreTokenizer(_words(r"\p{N}{1,3}"), whole_words=True),
    "qwen2": PreTokenizer(_words(r"\p{N}"), nfc=True),
}
