"""A tokenizer folder rebuilt from a GGUF's fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from precast.errors import SourceError

# tokenizer.ggml.token_type
CONTROL, USER_DEFINED = 3, 4

PreTokenizer = Callable[[], Any]


def _smollm() -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


# tokenizer.ggml.pre → the pre-tokenizer that the original tokenizer.json has.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "smollm": _smollm,
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
}


def tokenizer_files(fields: dict[str, Any], config: dict[str, Any], where: str) -> dict[str, Any]:
    """→ file name → content (text, or an object for JSON) of the tokenizer that the fields describe.

    Raises SourceError for a tokenizer kind that is not supported.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise SourceError(
            f"{where}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; "
            f"byte-level BPE with {', '.join(PRE_TOKENIZERS)} is"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges, fuse_unk=False))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    for kind_of_token, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        chosen = (token for token, kind in zip(tokens, types, strict=True) if kind == kind_of_token)
        add([AddedToken(token, normalized=False) for token in chosen])
    special = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in fields
    }
    files: dict[str, Any] = {
        "tokenizer.json": json.loads(tokenizer.to_str()),
        "tokenizer_config.json": {
            **special,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "generation_config.json": {k: config[k] for k in ("bos_token_id", "eos_token_id") if k in config},
    }
    if template := fields.get("tokenizer.chat_template"):
        files["chat_template.jinja"] = template
    return files
