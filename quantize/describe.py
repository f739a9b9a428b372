"""What `inspect` shows of model sources."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from precast.errors import SourceError
from precast.quantize.account import account
from precast.quantize.families import family_of
from precast.quantize.sources import Source, open_source


def describe_source(path: Path) -> dict[str, Any]:
    """Kind, architecture, dimensions, tensors and parameters; `refused`: why `convert` would not take it, else None.

    Raises SourceError as `open_source` does.
    """
    source = open_source(path)
    shapes = source.shapes()
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config = source.config
    return {
        "kind": source.kind,
        "model_type": config.get("model_type"),
        "architectures": config.get("architectures"),
        "dtype": source.dtype,
        **{key: config.get(key) for key in (*keys, "vocab_size", "max_position_embeddings", "tie_word_embeddings")},
        "tensors": len(shapes),
        "stored_as": dict(Counter(source.stored_as().values()).most_common()),
        "parameters": sum(math.prod(shape) for shape in shapes.values()),
        "refused": _refused(source),
    }


def refuse_unsupported(path: Path) -> None:
    """Raises SourceError for what `convert` would not take, by its headers, names and config."""
    _refuse(open_source(path))


def _refuse(source: Source) -> None:
    family = family_of(source.config, source.where)
    account(source, family, family.read(source.config, "float32", source.where))


def _refused(source: Source) -> str | None:
    try:
        _refuse(source)
    except SourceError as error:
        return str(error)
    return None
