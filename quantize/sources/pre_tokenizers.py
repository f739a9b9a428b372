"""How byte-level tokenizers cut text before they merge: the pre-tokenizers of the original tokenizer.json files, by the
names that GGUF has for them (tokenizer.ggml.pre)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    """Contractions, words with what stands before them, digits, signs, ends of lines, other spaces."""
    words = (CONTRACTIONS, r"[^\r\n\p{L}\p{N}]?\p{L}+")
    return "|".join((*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n]*", *_SPACES))


def _cased_words(digits: str, contraction: str = "") -> str:
    """As `_words`, where a capital letter behind a small one begins a word, and contractions belong to their words."""
    before, end = r"[^\r\n\p{L}\p{N}]?", f"{contraction}?" if contraction else ""
    words = (f"{before}{_UPPER}*{_LOWER}+{end}", f"{before}{_UPPER}+{_LOWER}*{end}")
    return "|".join((*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", *_SPACES))


_SPACES = (r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")


@dataclass(frozen=True)
class PreTokenizer:
    """`pattern`: a regular expression of the pieces (None: GPT-2's own). `nfc`: texts are normalized to NFC before."""

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False  # a word that is a token stays whole
    nfc: bool = False
    bos: bool = False  # before every text, unless the file says otherwise

    def tokenizer(
        self, vocab: dict[str, int], merges: list[tuple[str, str]], add_prefix_space: bool = False
    ) -> Tokenizer:
        """Byte-level BPE. The library raises bare Exception for what makes none."""
        tokenizer = Tokenizer(models.BPE(vocab, merges, fuse_unk=False, ignore_merges=self.whole_words))
        tokenizer.pre_tokenizer = self.make(add_prefix_space)
        if self.nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def make(self, add_prefix_space: bool = False) -> Any:
        """The pre-tokenizer, down to printable bytes."""
        level = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=self.pattern is None)
        before: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if self.single_digits else []
        if self.pattern is not None:
            before.append(pre_tokenizers.Split(Regex(self.pattern), "isolated"))
        return pre_tokenizers.Sequence([*before, level]) if before else level


_LLAMA3 = PreTokenizer(_words(r"\p{N}{1,3}"), whole_words=True, bos=True)
_QWEN2 = PreTokenizer(_words(r"\p{N}"), nfc=True)

PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "smaug-bpe": replace(_LLAMA3, whole_words=False),
    "dbrx": PreTokenizer(_words(r"\p{N}{1,3}")),  # Phi-4
    "gpt-4o": PreTokenizer(_cased_words(r"\p{N}{1,3}", CONTRACTIONS)),  # Phi-4 mini
    "tekken": PreTokenizer(_cased_words(r"\p{N}"), whole_words=True, bos=True),  # Mistral Nemo
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
