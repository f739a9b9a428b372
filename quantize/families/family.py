"""What a family description holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precast.checkpoint import ModelConfig

Reader = Callable[[dict[str, Any], str, str], ModelConfig]


@dataclass(frozen=True)
class Family:
    """One model family.

    `read(config, dtype, where)` makes the checkpoint's config of a Hugging Face config; `where` is for messages.
    `modules` and `layer_modules` map checkpoint modules to the source's modules whose rows are joined, layers with
    `{i}`. `gguf` maps GGUF tensor stems (layers as `blk.{i}.x`) to the source's modules, and `gguf_permuted`
    names those whose rows GGUF permutes per head.
    `rotatable`: every norm's gain folds into the linears that follow, so the residual stream can be rotated.
    """

    model_type: str
    architecture: str
    read: Reader
    modules: dict[str, tuple[str, ...]]
    layer_modules: dict[str, tuple[str, ...]]
    ignored: tuple[str, ...]
    gguf: dict[str, str]
    gguf_permuted: tuple[str, ...]
    rotatable: bool
