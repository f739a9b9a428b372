"""Qwen 2, 2.5 and 3."""

from __future__ import annotations

from dataclasses import replace

from precast.quantize.families.family import ATTENTION_BIAS, Family, Gguf, Key
from precast.quantize.families.llama import GGUF, LAYER_MODULES, LLAMA_LIKE, QK_NORM_GGUF, QK_NORM_MODULES
from precast.quantize.families.windows import when_used

QWEN2: Family = replace(
    LLAMA_LIKE,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    title="Qwen 2",
    models="Qwen 2, Qwen 2.5, QwQ",
    settings={
        "max_position_embeddings": Key("max_position_embeddings", default=32768),
        "qkv_bias": True,
        ("sliding_window", "layer_types"): when_used,
    },
    gguf=Gguf("qwen2", GGUF),
)

QWEN3: Family = replace(
    LLAMA_LIKE,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    title="Qwen 3",
    models="Qwen 3 (dense)",
    settings={
        "head_size": Key("head_dim", default=128),
        "max_position_embeddings": Key("max_position_embeddings", default=32768),
        **ATTENTION_BIAS,
        "qk_norm": "rms_head",
        ("sliding_window", "layer_types"): when_used,
    },
    layer_modules={**LAYER_MODULES, **QK_NORM_MODULES},
    gguf=Gguf("qwen3", GGUF | QK_NORM_GGUF),
)
