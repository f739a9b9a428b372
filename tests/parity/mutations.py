"""Checkpoints with one feature taken away, to see that tests would notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from precast.builder.weights import Checkpoint
from precast.checkpoint import ModelConfig, tensor_shapes

Array = npt.NDArray[Any]
Change = dict[str, Any]

NO_FEATURES = frozenset(
    {
        *("architecture", "dtype", "quantization", "rotation", "mapping", "pretrained_config", "norm_gain_folded"),
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_size", "max_position_embeddings", "tie_word_embeddings"),
        "alibi_slopes",  # goes with position_embedding_type
    }
)
"""Fields that say how large a model is or how it is stored."""

NO_ROPE = {"position_embedding_type": "none", "rotary_dim": 0}
NO_POSITIONS = NO_ROPE | {"alibi_slopes": None}
NO_WINDOW = {"sliding_window": None, "layer_types": None}

# Field → what takes it away where the default alone does not: it has none, or others go with it.
CHANGES: dict[str, Callable[[ModelConfig], Change]] = {
    "norm_epsilon": lambda c: {"norm_epsilon": 3e-2},
    "rotary_base": lambda c: {} if c.rotary_dim == 0 else {"rotary_base": 777.0},
    "rotary_dim": lambda c: {} if c.rotary_dim == 0 else NO_ROPE,
    "position_embedding_type": lambda c: NO_POSITIONS,
    "parallel_residual": lambda c: {"parallel_residual": False, "parallel_shared_norm": False},
    "sliding_window": lambda c: NO_WINDOW,
    "layer_types": lambda c: {"layer_types": ("sliding_attention",) * c.num_hidden_layers},
    "moe": lambda c: {"moe": None},
}


def mutants(config: ModelConfig) -> Iterator[tuple[str, ModelConfig]]:
    """Name of a feature → the config without it: each field that is not as Llama's, set back."""
    defaults = {field.name: field.default for field in fields(ModelConfig)}
    for name in defaults.keys() - NO_FEATURES:
        if getattr(config, name) == defaults[name]:
            continue
        change = CHANGES[name](config) if name in CHANGES else {name: defaults[name]}
        if any(getattr(config, key) != value for key, value in change.items()):
            yield name, replace(config, **change)
    if 0 < config.rotary_dim < config.head_size:
        yield "partial rope", replace(config, rotary_dim=config.head_size, rotary_scaling=None)
    if moe := config.moe:
        yield "norm_topk_prob", replace(config, moe=replace(moe, norm_topk_prob=not moe.norm_topk_prob))
        yield "num_experts_per_tok", replace(config, moe=replace(moe, num_experts_per_tok=moe.num_experts_per_tok - 1))
        if moe.shared_expert_intermediate_size:
            yield "shared expert", replace(config, moe=replace(moe, shared_expert_intermediate_size=0))


def optional_tensors(config: ModelConfig) -> list[str]:
    """Ends of the names of tensors that would do nothing at a neutral value: gains, biases, positions."""
    ends = {name.split(".layers.0.")[-1] for name in tensor_shapes(config) if ".layers.1." not in name}
    kinds = ("norm.weight", "ln_f.weight", "ln_embed.weight", "position_embedding.weight", "shared_expert_gate.weight")
    return sorted(end for end in ends if end.endswith((*kinds, ".bias")) and ".layers." not in end)


class Changed(Checkpoint):
    """A checkpoint read with another config, or without a tensor: what it lacks has a value that does nothing."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, dropped: str | None = None) -> None:
        self.config = config
        self._original = checkpoint
        self._dropped = dropped
        self._stored = tensor_shapes(checkpoint.config)

    def tensor(self, name: str) -> Array:
        if name in self._stored and not (self._dropped and name.endswith(self._dropped)):
            return self._original.tensor(name)
        shape = tensor_shapes(self.config)[name][1]
        gain = name.endswith(("norm.weight", "ln_f.weight", "ln_embed.weight"))
        return np.ones(shape, np.float32) if gain else np.zeros(shape, np.float32)
