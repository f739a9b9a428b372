"""Granite 3.x (dense): Llama with four multipliers."""

from __future__ import annotations

from dataclasses import replace

from precast.quantize.families.family import Family, Key
from precast.quantize.families.llama import LLAMA, LLAMA_LIKE

GRANITE: Family = replace(
    LLAMA_LIKE,
    model_type="granite",
    architecture="GraniteForCausalLM",
    title="Granite",
    models="Granite 3.x (dense)",
    settings={
        **LLAMA.settings,
        "embedding_multiplier": Key("embedding_multiplier", "number", 1.0),
        "residual_multiplier": Key("residual_multiplier", "number", 1.0),
        "attention_scale": Key("attention_multiplier", "number", 1.0),
        "logits_multiplier": lambda c, m: 1 / c.number("logits_scaling", 1.0),
    },
    only={"pretraining_tp": (1,)},
)
