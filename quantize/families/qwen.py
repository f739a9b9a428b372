"""Qwen 2, 2.5 and 3."""

from __future__ import annotations

from dataclasses import replace

from precast.quantize.families.family import Family, Key
from precast.quantize.families.llama import GGUF, LAYER_MODULES, LLAMA, QK_NORM_MODULES
from precast.quantize.families.windows import when_used

QWEN2: Family = replace(
    LLAMA,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    title="Qwen 2",
    models="Qwen 2, Qwen 2.5, QwQ",
    settings={
        "max_position_embeddings": Key("max_position_embeddings", default=32768),
        "qkv_bias": True,
        ("sliding_window", "layer_types"): when_used,
    },
    only={},
    gguf_name="qwen2",
    gguf_permuted=(),
)

QWEN3: Family = replace(
    LLAMA,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    title="Qwen 3",
    models="Qwen 3 (dense)",
    settings={
        "head_size": Key("head_dim", default=128),
        "max_position_embeddings": Key("max_position_embeddings", default=32768),
        "qkv_bias": Key("attention_bias", "flag", False),
        "dense_bias": lambda c, m: m["qkv_bias"],
        "qk_norm": "rms_head",
        ("sliding_window", "layer_types"): when_used,
    },
    only={},
    layer_modules={**LAYER_MODULES, **QK_NORM_MODULES},
    gguf_name="qwen3",
    gguf={
        **GGUF,
        "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
        "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
    },
    gguf_permuted=(),
)
