"""The tokenizer of a Hugging Face folder that has no tokenizer.json: made of `tokenizer.model`, or of `vocab.json` and
`merges.txt`, as transformers makes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from precast.errors import SourceError
from precast.json_file import read_small_file
from precast.quantize.sources.pre_tokenizers import PRE_TOKENIZERS
from precast.quantize.sources.sentencepiece import around, read_model
from precast.runtime.text.tokenizer import failing_as, read_json

MODEL, VOCAB, MERGES, ADDED = "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"

MAX_MERGES_BYTES = 16 << 20
"""The longest known lists, of half a million, take 6 MB."""

_END = "<|endoftext|>"
_GPT2 = ("gpt-2", {"bos_token": _END, "eos_token": _END, "unk_token": _END})

BYTE_LEVEL: dict[str, tuple[str, dict[str, str]]] = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "Qwen2Tokenizer": ("qwen2", {"eos_token": _END, "pad_token": _END, "unk_token": _END}),
}
"""Class in tokenizer_config.json → the pre-tokenizer, and special tokens that it has unless the config names others."""


def made_tokenizer(folder: Path) -> dict[str, Any]:
    """File name → JSON object of the tokenizer files that the folder lacks; {} when it lacks none, or has no tokenizer.

    Raises SourceError for files that make no tokenizer.
    """
    if (folder / TOKENIZER).is_file():
        return {}
    maker: Callable[[Path, dict[str, Any]], tuple[Tokenizer, dict[str, Any]]]
    if (folder / MODEL).is_file():
        maker, where = _of_sentencepiece, folder / MODEL
    elif (folder / VOCAB).is_file():
        maker, where = _of_vocab_and_merges, folder / VOCAB
    else:
        if (folder / "tekken.json").is_file():
            raise SourceError(f"{folder / 'tekken.json'} is not supported; give the folder a tokenizer.json")
        return {}
    config = read_json(folder / CONFIG)
    with failing_as(SourceError, f"{where} makes no tokenizer"):
        tokenizer, special = maker(folder, config)
        config = special | config
        _surround(tokenizer, config, default=where.name == MODEL)
        return {TOKENIZER: json.loads(tokenizer.to_str()), CONFIG: _with_added(folder, config, tokenizer)}


def _of_sentencepiece(folder: Path, _config: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    model = read_model(folder / MODEL)
    return model.tokenizer(), {"tokenizer_class": "PreTrainedTokenizerFast"} | model.special_tokens()


def _of_vocab_and_merges(folder: Path, config: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    kind = str(config.get("tokenizer_class", "GPT2Tokenizer")).removesuffix("Fast")
    if kind not in BYTE_LEVEL:
        raise SourceError(
            f"{folder / VOCAB} belongs to a {kind}, which precast cannot make (it makes {', '.join(BYTE_LEVEL)}); "
            f"let transformers: AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
        )
    name, special = BYTE_LEVEL[kind]
    vocab, merges = read_json(folder / VOCAB), _merges(folder / MERGES)
    tokenizer = PRE_TOKENIZERS[name].tokenizer(vocab, merges, bool(config.get("add_prefix_space")))
    return tokenizer, {"tokenizer_class": kind} | special


def _merges(path: Path) -> list[tuple[str, str]]:
    data = read_small_file(path, SourceError, MAX_MERGES_BYTES, "a list of merges")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} cannot be read: {error}") from None
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if wrong := next((pair for pair in pairs if len(pair) != 2), None):
        raise SourceError(f"{path}: {' '.join(wrong)[:80]!r} is not a pair of tokens")
    return pairs  # type: ignore[return-value] # of two, as just seen


def _surround(tokenizer: Tokenizer, config: dict[str, Any], default: bool) -> None:
    """BOS and EOS, where the config asks for them; it need not ask for sentencepiece's BOS."""
    wanted = {"bos_token": config.get("add_bos_token", default), "eos_token": config.get("add_eos_token", False)}
    tokens = {name: _text(config.get(name)) if add else None for name, add in wanted.items()}
    for name, token in tokens.items():
        if token is not None and tokenizer.token_to_id(token) is None:
            tokenizer.add_special_tokens([token])
        if token is None and config.get(f"add_{name}"):
            raise SourceError(f"{CONFIG} asks for {name} around texts and names none")
    if any(tokens.values()):
        around(tokenizer, tokens["bos_token"], tokens["eos_token"])


def _text(token: Any) -> str | None:
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) and token else None


def _with_added(folder: Path, config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The config with the tokens that old folders list in added_tokens.json, which come behind the vocabulary."""
    added = read_json(folder / ADDED)
    if "added_tokens_decoder" in config or not added:
        return config
    special = {text for name, value in config.items() if name.endswith("_token") and (text := _text(value))}
    decoder = {
        str(index): {"content": token, "special": token in special, "normalized": token not in special}
        for token, index in sorted(added.items(), key=lambda item: int(item[1]))
    }
    return config | {"added_tokens_decoder": decoder}
