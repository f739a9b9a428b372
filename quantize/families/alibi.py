"""Bloom and MPT: no position embedding; scores fall with the distance (ALiBi: Press et al., 2021, arXiv:2108.12409)."""

from __future__ import annotations

import math
from typing import Any

from precast.quantize.families.config_reader import ConfigReader
from precast.quantize.families.family import Family, Key, same_as
from precast.quantize.families.gpt import BIASES, LAYER_NORMS
from precast.quantize.families.selections import concatenated, fused, grouped


def _slopes(heads: int, largest: float) -> list[float]:
    """2^(−largest·i/heads) for i = 1 … heads, a power of two."""
    return [2.0 ** (-largest * i / heads) for i in range(1, heads + 1)]


def _bloom_slopes(c: ConfigReader, m: dict[str, Any]) -> tuple[float, ...]:
    """Those of the power of two below, then every second one of the next power."""
    heads = m["num_attention_heads"]
    below = 1 << (heads.bit_length() - 1)
    return tuple(_slopes(below, 8) + _slopes(2 * below, 8)[::2][: heads - below])


_H = "transformer.h.{i}."

BLOOM = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    title="Bloom",
    models="Bloom, Bloomz",
    renamed={"n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    settings={
        **LAYER_NORMS,
        **BIASES,
        "intermediate_size": lambda c, m: 4 * m["hidden_size"],
        "num_key_value_heads": same_as("num_attention_heads"),
        "max_position_embeddings": Key("seq_length", default=2048),
        "hidden_act": "gelu_tanh",
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        "position_embedding_type": "alibi",
        "alibi_slopes": _bloom_slopes,
        "embedding_norm": True,
        "gated_mlp": False,
    },
    rope=None,
    only={"apply_residual_connection_post_layernorm": (False,)},
    unused=(
        *("slow_but_exact", "pretraining_tp", "skip_bias_add", "skip_bias_add_qkv", "masked_softmax_fusion"),
        *("attention_softmax_in_fp32", "bias_dropout_fusion", "offset_alibi"),
    ),
    base="transformer.",
    modules={
        "transformer.vocab_embedding": "transformer.word_embeddings",
        "transformer.ln_embed": "transformer.word_embeddings_layernorm",
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    layer_modules={
        "input_layernorm": _H + "input_layernorm",
        "attention.qkv": fused(_H + "self_attention.query_key_value", grouped),
        "attention.dense": _H + "self_attention.dense",
        "post_layernorm": _H + "post_attention_layernorm",
        "mlp.fc": _H + "mlp.dense_h_to_4h",
        "mlp.proj": _H + "mlp.dense_4h_to_h",
    },
)


def _mpt_attention(c: ConfigReader, m: dict[str, Any]) -> tuple[tuple[float, ...], float | None, float | None]:
    """→ (alibi_slopes, attention_scale, clip_qkv) of the object `attn_config`."""
    heads, inner = m["num_attention_heads"], c.inner("attn_config")
    above = 2 ** math.ceil(math.log2(heads))
    slopes = _slopes(above, 8)
    if above != heads:
        slopes = (slopes[1::2] + slopes[::2])[:heads]
    found = tuple(slopes), inner.number_or_none("softmax_scale"), inner.number_or_none("clip_qkv")
    inner.only("alibi_bias_max", 8)  # transformers reads it and never applies another
    for key, value in (("alibi", True), ("attn_type", "multihead_attention"), ("qk_ln", False), ("prefix_lm", False)):
        inner.only(key, value)
    inner.finish(("attn_impl", "attn_uses_sequence_id"))
    return found


_B = "transformer.blocks.{i}."

MPT = Family(
    model_type="mpt",
    architecture="MptForCausalLM",
    title="MPT",
    models="MPT 7B, 30B",
    renamed={
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
    },
    settings={
        **LAYER_NORMS,
        "norm_bias": False,
        "intermediate_size": lambda c, m: 4 * m["hidden_size"],
        "num_key_value_heads": same_as("num_attention_heads"),
        "hidden_act": "gelu",
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        "position_embedding_type": "alibi",
        ("alibi_slopes", "attention_scale", "clip_qkv"): _mpt_attention,
        "gated_mlp": False,
    },
    rope=None,
    # transformers reads logit_scale and never applies it
    only={"expansion_ratio": (4,), "no_bias": (True,), "logit_scale": (), "embedding_fraction": (1, 1.0)},
    unused=("emb_pdrop", "init_device", "verbose", "learned_pos_emb", "norm_type", "init_config"),
    base="transformer.",
    modules={
        "transformer.vocab_embedding": "transformer.wte",
        "transformer.ln_f": "transformer.norm_f",
        "lm_head": "lm_head",
    },
    layer_modules={
        "input_layernorm": _B + "norm_1",
        "attention.qkv": fused(_B + "attn.Wqkv", concatenated),
        "attention.dense": _B + "attn.out_proj",
        "post_layernorm": _B + "norm_2",
        "mlp.fc": _B + "ffn.up_proj",
        "mlp.proj": _B + "ffn.down_proj",
    },
)
