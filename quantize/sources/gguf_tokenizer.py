"""A tokenizer folder rebuilt from a GGUF's fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from precast.errors import SourceError
from precast.runtime.text.chat_template import ChatTemplate

# tokenizer.ggml.token_type
CONTROL, USER_DEFINED, UNUSED, BYTE = 3, 4, 5, 6

# Contractions, words with what stands before them, up to three digits, signs, ends of lines, other spaces.
_LLAMA3 = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def _smollm() -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _llama3() -> Any:
    split = pre_tokenizers.Split(Regex(_LLAMA3), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# tokenizer.ggml.pre → the pre-tokenizer of the original tokenizer.json, and whether a word that is a token stays whole.
PRE_TOKENIZERS: dict[str, tuple[Callable[[], Any], bool]] = {
    "smollm": (_smollm, False),
    "gpt-2": (lambda: pre_tokenizers.ByteLevel(add_prefix_space=False), False),
    "llama-bpe": (_llama3, True),
}


def tokenizer_files(fields: dict[str, Any], config: dict[str, Any], where: str) -> dict[str, Any]:
    """→ file name → content (text, or an object for JSON) of the tokenizer that the fields describe.

    Raises SourceError for a tokenizer kind that is not supported, and for fields that do not make one.
    """
    try:
        tokenizer = _tokenizer(fields, where)
        special = _special_tokens(fields)
    except SourceError:
        raise
    except Exception as error:  # fields of any type and length, and a library that raises bare Exception
        raise SourceError(f"{where}: its tokenizer fields make no tokenizer: {error!r}") from None
    files: dict[str, Any] = {
        "tokenizer.json": json.loads(tokenizer.to_str()),
        "tokenizer_config.json": {
            **special,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "generation_config.json": _generation_config(fields),
    }
    if template := fields.get("tokenizer.chat_template"):
        ChatTemplate(str(template), special, f"{where}: tokenizer.chat_template").check()
        files["chat_template.jinja"] = str(template)
    return files


def _tokenizer(fields: dict[str, Any], where: str) -> Tokenizer:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind == "gpt2" and pre in PRE_TOKENIZERS:
        tokenizer = _byte_level(fields, *PRE_TOKENIZERS[pre])
    elif kind == "llama":
        tokenizer = _sentencepiece(fields)
    else:
        raise SourceError(
            f"{where}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; sentencepiece BPE (llama) and "
            f"byte-level BPE (gpt2) with {', '.join(PRE_TOKENIZERS)} are"
        )
    if fields.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre == "llama-bpe"):
        bos = fields["tokenizer.ggml.bos_token_id"]
        name = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[name, "$A"], pair=[name, "$A", name, "$B"], special_tokens=[(name, bos)]
        )
    for kind_of_token, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        chosen = (token for token, its in zip(tokens, types, strict=True) if its == kind_of_token)
        add([AddedToken(token, normalized=False) for token in chosen])
    return tokenizer


def _byte_level(fields: dict[str, Any], pre_tokenizer: Callable[[], Any], whole_words: bool) -> Tokenizer:
    vocab = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, fuse_unk=False, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(fields: dict[str, Any]) -> Tokenizer:
    """sentencepiece merges the pair whose joined piece scores best: its merges in that order, as BPE has them.

    Control, unused and byte pieces never come from merging.
    """
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    vocab = {token: i for i, token in enumerate(tokens)}
    mergeable = {t for t, kind in zip(tokens, types, strict=True) if kind not in (CONTROL, UNUSED, BYTE)}
    best_first = sorted(zip(fields["tokenizer.ggml.scores"], tokens, strict=True), key=lambda item: -item[0])
    merges = [
        (token[:cut], token[cut:])
        for _, token in best_first
        if token in mergeable
        for cut in range(1, len(token))
        if token[:cut] in mergeable and token[cut:] in mergeable
    ]
    unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _special_tokens(fields: dict[str, Any]) -> dict[str, str]:
    return {
        f"{name}_token": fields["tokenizer.ggml.tokens"][fields[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in fields
    }


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    """A text ends at `eos`, and a turn at `eot` where the file names one."""
    ends = [fields[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in fields]
    ends = list(dict.fromkeys(ends))
    config: dict[str, Any] = {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}
    if "tokenizer.ggml.bos_token_id" in fields:
        config["bos_token_id"] = fields["tokenizer.ggml.bos_token_id"]
    return config
