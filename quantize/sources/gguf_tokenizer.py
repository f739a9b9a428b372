"""A tokenizer folder rebuilt from a GGUF's fields."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

from precast.errors import SourceError
from precast.quantize.sources.pre_tokenizers import PRE_TOKENIZERS
from precast.quantize.sources.sentencepiece import SentencePiece, add_by_kind, around
from precast.runtime.text.chat_template import DEFAULT, ChatTemplate
from precast.runtime.text.tokenizer import is_failure


def tokenizer_files(fields: dict[str, Any], config: dict[str, Any], where: str) -> dict[str, Any]:
    """→ file name → content (text, or an object for JSON) of the tokenizer that the fields describe.

    Raises SourceError for a tokenizer kind that is not supported, and for fields that do not make one.
    """
    try:
        tokenizer = _tokenizer(fields, where)
        special, generation = _special_tokens(fields), _generation_config(fields)
    except SourceError:
        raise
    except BaseException as error:  # fields of any type and length
        if not is_failure(error):
            raise
        raise SourceError(f"{where}: its tokenizer fields make no tokenizer: {error!r}") from None
    files: dict[str, Any] = {
        "tokenizer.json": json.loads(tokenizer.to_str()),
        "tokenizer_config.json": {
            **special,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "generation_config.json": generation,
    }
    if templates := _chat_templates(fields):
        ChatTemplate(templates, special, f"{where}: tokenizer.chat_template").check()
        if templates.keys() == {DEFAULT}:
            files["chat_template.jinja"] = templates[DEFAULT]
        else:
            listed = [{"name": name, "template": template} for name, template in templates.items()]
            files["tokenizer_config.json"]["chat_template"] = listed
    return files


def _chat_templates(fields: dict[str, Any]) -> dict[str, str]:
    """By name: `tokenizer.chat_template` is the default, `tokenizer.chat_template.NAME` another."""
    key = "tokenizer.chat_template"
    named = {name.removeprefix(f"{key}."): str(value) for name, value in fields.items() if name.startswith(f"{key}.")}
    return ({DEFAULT: str(fields[key])} if fields.get(key) else {}) | named


def _tokenizer(fields: dict[str, Any], where: str) -> Tokenizer:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if len(set(tokens)) < len(tokens):
        raise SourceError(f"{where}: its tokens are not unique")
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind == "gpt2" and pre in PRE_TOKENIZERS:
        merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
        tokenizer = PRE_TOKENIZERS[pre].tokenizer({token: i for i, token in enumerate(tokens)}, merges)
        add_by_kind(tokenizer, tokens, types)
    elif kind == "llama":
        tokenizer = _sentencepiece(fields)
    else:
        raise SourceError(
            f"{where}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; sentencepiece BPE (llama) and "
            f"byte-level BPE (gpt2) with {', '.join(PRE_TOKENIZERS)} are"
        )
    wanted = {"bos": kind == "llama" or PRE_TOKENIZERS[str(pre)].bos, "eos": False}
    first, last = (
        _token(fields, key) if fields.get(f"tokenizer.ggml.add_{key}_token", add) else None
        for key, add in wanted.items()
    )
    if first is not None or last is not None:
        around(tokenizer, first, last)
    return tokenizer


def _token(fields: dict[str, Any], key: str) -> str:
    """The token that a field names by its id. Raises ValueError for what is no id of a token."""
    tokens, index = fields["tokenizer.ggml.tokens"], fields[f"tokenizer.ggml.{key}_token_id"]
    if type(index) is not int or not 0 <= index < len(tokens):
        raise ValueError(f"{key}_token_id is {index!r}, there are {len(tokens)} tokens")
    return str(tokens[index])


def _sentencepiece(fields: dict[str, Any]) -> Tokenizer:
    return SentencePiece(
        pieces=fields["tokenizer.ggml.tokens"],
        scores=fields["tokenizer.ggml.scores"],
        kinds=fields["tokenizer.ggml.token_type"],
        unk_id=fields.get("tokenizer.ggml.unknown_token_id", 0),
        add_dummy_prefix=fields.get("tokenizer.ggml.add_space_prefix", True),
    ).tokenizer()


def _special_tokens(fields: dict[str, Any]) -> dict[str, str]:
    return {
        f"{name}_token": _token(fields, key)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in fields
    }


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    """A text ends at `eos`, and a turn at `eot` where the file names one."""
    named = (key for key in ("eos", "eot") if f"tokenizer.ggml.{key}_token_id" in fields)
    ends = list({_token(fields, key): fields[f"tokenizer.ggml.{key}_token_id"] for key in named}.values())
    config: dict[str, Any] = {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}
    if "tokenizer.ggml.bos_token_id" in fields:
        config["bos_token_id"] = fields["tokenizer.ggml.bos_token_id"]
    return config
