"""What `inspect` shows of model sources."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from precast.quantize.sources import open_source


def describe_source(path: Path) -> dict[str, Any]:
    """Kind, architecture, dimensions, tensors and parameters. Raises SourceError as `open_source` does."""
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
        "parameters": sum(math.prod(shape) for shape in shapes.values()),
    }
