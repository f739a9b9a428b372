"""Llama 1 to 3.x and what shares its config (SmolLM2, TinyLlama, …), and Mistral."""

from __future__ import annotations

from dataclasses import replace

from precast.quantize.families.family import ATTENTION_BIAS, Family, Gguf, Key, Parts
from precast.quantize.families.rope_settings import Rope
from precast.quantize.families.windows import every_layer

_ATTENTION, _MLP = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."

MODULES: dict[str, Parts] = {
    "transformer.vocab_embedding": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    "lm_head": "lm_head",
}
LAYER_MODULES: dict[str, Parts] = {
    "input_layernorm": "model.layers.{i}.input_layernorm",
    "attention.qkv": (_ATTENTION + "q_proj", _ATTENTION + "k_proj", _ATTENTION + "v_proj"),
    "attention.dense": _ATTENTION + "o_proj",
    "post_layernorm": "model.layers.{i}.post_attention_layernorm",
    "mlp.fc": _MLP + "gate_proj",
    "mlp.gate": _MLP + "up_proj",
    "mlp.proj": _MLP + "down_proj",
}
QK_NORM_MODULES: dict[str, Parts] = {
    "attention.q_layernorm": _ATTENTION + "q_norm",
    "attention.k_layernorm": _ATTENTION + "k_norm",
}
GGUF: dict[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.attn_q": _ATTENTION + "q_proj",
    "blk.{i}.attn_k": _ATTENTION + "k_proj",
    "blk.{i}.attn_v": _ATTENTION + "v_proj",
    "blk.{i}.attn_output": _ATTENTION + "o_proj",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_gate": _MLP + "gate_proj",
    "blk.{i}.ffn_up": _MLP + "up_proj",
    "blk.{i}.ffn_down": _MLP + "down_proj",
}
QK_NORM_GGUF: dict[str, str] = {
    "blk.{i}.attn_q_norm": _ATTENTION + "q_norm",
    "blk.{i}.attn_k_norm": _ATTENTION + "k_norm",
}

LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    title="Llama",
    models="Llama 1 to 3.x, SmolLM2, TinyLlama, Yi, Vicuna",
    settings={
        **ATTENTION_BIAS,
        "mlp_bias": Key("mlp_bias", "flag", False),
    },
    rope=Rope(),
    only={"pretraining_tp": (1,), "rope_interleaved": (False,), "is_llama_config": (True,)},
    modules=MODULES,
    layer_modules=LAYER_MODULES,
    gguf=Gguf("llama", GGUF, permuted=("attn_q", "attn_k")),
)

LLAMA_LIKE = replace(LLAMA, only={}, gguf=None)
"""What families are derived from that do without Llama's own settings and GGUF files."""

MISTRAL = replace(
    LLAMA_LIKE,
    model_type="mistral",
    architecture="MistralForCausalLM",
    title="Mistral",
    models="Mistral 7B, Mistral Nemo, Mistral Small (text)",
    settings={
        "num_key_value_heads": Key("num_key_value_heads", default=8),
        "max_position_embeddings": Key("max_position_embeddings", default=4096 * 32),
        ("sliding_window", "layer_types"): every_layer(default=4096),
    },
)
