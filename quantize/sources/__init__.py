"""Model sources: folders and files that people have, all seen as a Hugging Face config and named tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precast.errors import SourceError
from precast.quantize.sources.gguf_file import GgufSource
from precast.quantize.sources.hf_folder import HfFolder
from precast.quantize.sources.source import Source

__all__ = ["Source", "describe_source", "open_source"]


def open_source(path: Path) -> Source:
    """Opens a Hugging Face folder or a GGUF file; headers and names are checked, tensors are not read.

    Raises SourceError when it is neither, or damaged.
    """
    if path.is_dir():
        return HfFolder(path)
    if not path.exists():
        raise SourceError(f"{path} does not exist")
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic == b"GGUF":
        return GgufSource(path)
    raise SourceError(f"{path} is neither a Hugging Face folder nor a GGUF file")


def describe_source(path: Path) -> dict[str, Any]:
    """What `inspect` shows of a source: kind, architecture, dimensions, tensors and bytes."""
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
        "parameters": sum(_count(shape) for shape in shapes.values()),
    }


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
