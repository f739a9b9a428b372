"""Llama 1 to 3.x, and what shares its config (SmolLM2, TinyLlama, …)."""

from __future__ import annotations

from typing import Any

from precast.checkpoint import ModelConfig
from precast.errors import SourceError
from precast.quantize.families.config_reader import ConfigReader
from precast.quantize.families.family import Family


def _read(config: dict[str, Any], dtype: str, where: str) -> ModelConfig:
    c = ConfigReader(config, where)
    hidden, heads = c.integer("hidden_size"), c.integer("num_attention_heads")
    head_size = c.integer("head_dim", max(1, hidden // heads))
    kv_heads = c.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise SourceError(f"{where}: {heads} attention heads cannot share {kv_heads} key/value heads")
    base, rotary_dim, scaling = c.rope(head_size)
    attention_bias = c.flag("attention_bias", False)
    c.only("hidden_act", "silu", "swish")
    c.only("pretraining_tp", 1)
    c.only("rope_interleaved", False)
    c.only("is_llama_config", True)
    model = ModelConfig(
        architecture="LlamaForCausalLM",
        dtype=dtype,
        vocab_size=c.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=c.integer("intermediate_size"),
        num_hidden_layers=c.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_size=head_size,
        max_position_embeddings=c.integer("max_position_embeddings", 2048),
        norm_epsilon=c.number("rms_norm_eps", 1e-6),
        rotary_base=base,
        rotary_dim=rotary_dim,
        rotary_scaling=scaling,
        qkv_bias=attention_bias,
        dense_bias=attention_bias,
        mlp_bias=c.flag("mlp_bias", False),
        tie_word_embeddings=c.flag("tie_word_embeddings", False),
        pretrained_config=config,
    )
    c.finish()
    return model


_ATTENTION, _MLP = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."

LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    read=_read,
    modules={
        "transformer.vocab_embedding": ("model.embed_tokens",),
        "transformer.ln_f": ("model.norm",),
        "lm_head": ("lm_head",),
    },
    layer_modules={
        "input_layernorm": ("model.layers.{i}.input_layernorm",),
        "attention.qkv": (_ATTENTION + "q_proj", _ATTENTION + "k_proj", _ATTENTION + "v_proj"),
        "attention.dense": (_ATTENTION + "o_proj",),
        "post_layernorm": ("model.layers.{i}.post_attention_layernorm",),
        "mlp.fc": (_MLP + "gate_proj",),
        "mlp.gate": (_MLP + "up_proj",),
        "mlp.proj": (_MLP + "down_proj",),
    },
    ignored=("*.rotary_emb.inv_freq",),  # a buffer that old transformers saved; it follows from the config
    gguf={
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
    },
    gguf_permuted=("attn_q", "attn_k"),
    rotatable=True,
)
