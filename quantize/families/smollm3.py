"""SmolLM3: every fourth layer has no rope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precast.quantize.families.config_reader import ConfigReader
from precast.quantize.families.family import Family, Key
from precast.quantize.families.llama import LLAMA, LLAMA_LIKE
from precast.quantize.families.rope_settings import Rope
from precast.quantize.families.windows import Windows, some_layers


def _no_rope_layers(c: ConfigReader, m: dict[str, Any]) -> tuple[int, ...]:
    """`no_rope_layers` holds 1 for a layer with rope, 0 for one without."""
    layers = m["num_hidden_layers"]
    interval, flags = c.integer("no_rope_layer_interval", 4), c.items("no_rope_layers")
    if flags is None:
        return tuple(range(interval - 1, layers, interval))
    if len(flags) < layers or any(type(flag) is not int or flag not in (0, 1) for flag in flags):
        raise c.refuse(f"no_rope_layers must hold 0 or 1 for each of the {layers} layers")
    return tuple(i for i in range(layers) if not flags[i])


def _windows(c: ConfigReader, m: dict[str, Any]) -> Windows:
    used, window = c.flag("use_sliding_window", False), c.integer_or_none("sliding_window")
    return some_layers(c, m, window if used else None, lambda i: used and bool(window) and i in m["no_rope_layers"])


SMOLLM3: Family = replace(
    LLAMA_LIKE,
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    title="SmolLM3",
    models="SmolLM3",
    settings={
        **LLAMA.settings,
        "num_key_value_heads": Key("num_key_value_heads", default=4),
        "max_position_embeddings": Key("max_position_embeddings", default=32768),
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        "no_rope_layers": _no_rope_layers,
        ("sliding_window", "layer_types"): _windows,
    },
    rope=Rope(base=2_000_000.0),
    only={"pretraining_tp": (1,)},
    unused=("max_window_layers",),
)
