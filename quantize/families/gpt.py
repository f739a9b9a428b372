"""GPT-2, GPT-NeoX (Pythia), GPT-J and OPT: layer norms with biases, and MLPs without a gate."""

from __future__ import annotations

from typing import Any

from precast.quantize.families.family import Family, Key, Part, same_as
from precast.quantize.families.rope_settings import Rope
from precast.quantize.families.selections import behind, concatenated, fused, grouped, interleaved

LAYER_NORMS: dict[Any, Any] = {
    "norm_type": "layer_norm",
    "norm_bias": True,
    "norm_epsilon": Key("layer_norm_epsilon", "number", 1e-5),
}
BIASES: dict[Any, Any] = {"qkv_bias": True, "dense_bias": True, "mlp_bias": True}
_MASKS = ("*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias")
"""Causal masks that old transformers saved."""

GPT_KEYS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}


def four_times_hidden(c: Any, m: dict[str, Any]) -> int:
    """`intermediate_size`, 4 · hidden where it is not said."""
    return int(c.integer("intermediate_size", 4 * m["hidden_size"]))


_H = "transformer.h.{i}."

GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    title="GPT-2",
    models="GPT-2, DistilGPT-2",
    renamed=GPT_KEYS,
    settings={
        **LAYER_NORMS,
        **BIASES,
        "intermediate_size": four_times_hidden,
        "num_key_value_heads": same_as("num_attention_heads"),
        "max_position_embeddings": Key("max_position_embeddings", default=1024),
        "hidden_act": Key("hidden_act", "activation", "gelu_new"),
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        "position_embedding_type": "learned_absolute",
        "gated_mlp": False,
        "attention_scale": lambda c, m: None if c.flag("scale_attn_weights", True) else 1.0,
    },
    rope=None,
    only={"scale_attn_by_inverse_layer_idx": (False,)},
    unused=("n_ctx", "reorder_and_upcast_attn"),
    base="transformer.",
    modules={
        "transformer.vocab_embedding": "transformer.wte",
        "transformer.position_embedding": "transformer.wpe",
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    layer_modules={
        "input_layernorm": _H + "ln_1",
        "attention.qkv": fused(_H + "attn.c_attn", concatenated, transposed=True),
        "attention.dense": Part(_H + "attn.c_proj", transposed=True),
        "post_layernorm": _H + "ln_2",
        "mlp.fc": Part(_H + "mlp.c_fc", transposed=True),
        "mlp.proj": Part(_H + "mlp.c_proj", transposed=True),
    },
    ignored=_MASKS,
)

_NEOX = "gpt_neox.layers.{i}."

GPT_NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    title="GPT-NeoX",
    models="GPT-NeoX, Pythia, RedPajama",
    settings={
        **LAYER_NORMS,
        "norm_epsilon": Key("layer_norm_eps", "number", 1e-5),
        "num_key_value_heads": same_as("num_attention_heads"),
        "hidden_act": Key("hidden_act", "activation", "gelu"),
        "parallel_residual": Key("use_parallel_residual", "flag", True),
        "gated_mlp": False,
        "qkv_bias": Key("attention_bias", "flag", True),
        "dense_bias": same_as("qkv_bias"),
        "mlp_bias": True,
    },
    rope=Rope(partial=0.25, base_key="rotary_emb_base", partial_key="rotary_pct"),
    base="gpt_neox.",
    modules={
        "transformer.vocab_embedding": "gpt_neox.embed_in",
        "transformer.ln_f": "gpt_neox.final_layer_norm",
        "lm_head": "embed_out",
    },
    layer_modules={
        "input_layernorm": _NEOX + "input_layernorm",
        "attention.qkv": fused(_NEOX + "attention.query_key_value", grouped),
        "attention.dense": _NEOX + "attention.dense",
        "post_layernorm": _NEOX + "post_attention_layernorm",
        "mlp.fc": _NEOX + "mlp.dense_h_to_4h",
        "mlp.proj": _NEOX + "mlp.dense_4h_to_h",
    },
    ignored=(*_MASKS, "*.rotary_emb.inv_freq"),
)

GPTJ = Family(
    model_type="gptj",
    architecture="GPTJForCausalLM",
    title="GPT-J",
    models="GPT-J 6B",
    renamed=GPT_KEYS,
    settings={
        **LAYER_NORMS,
        "intermediate_size": four_times_hidden,
        "num_key_value_heads": same_as("num_attention_heads"),
        "hidden_act": Key("hidden_act", "activation", "gelu_new"),
        "rotary_dim": Key("rotary_dim", default=64),
        "parallel_residual": True,
        "parallel_shared_norm": True,
        "gated_mlp": False,
        "mlp_bias": True,
        "lm_head_bias": True,
    },
    rope=None,
    unused=("n_ctx", "rotary", "scale_attn_weights"),
    base="transformer.",
    modules={
        "transformer.vocab_embedding": "transformer.wte",
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    layer_modules={
        "input_layernorm": _H + "ln_1",
        "attention.qkv": (
            Part(_H + "attn.q_proj", interleaved("q")),
            Part(_H + "attn.k_proj", interleaved("k")),
            Part(_H + "attn.v_proj"),
        ),
        "attention.dense": _H + "attn.out_proj",
        "mlp.fc": _H + "mlp.fc_in",
        "mlp.proj": _H + "mlp.fc_out",
    },
    ignored=_MASKS,
)

_OPT = "model.decoder.layers.{i}."

OPT = Family(
    model_type="opt",
    architecture="OPTForCausalLM",
    title="OPT",
    models="OPT (but for 350M)",
    renamed={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
    settings={
        **LAYER_NORMS,
        "norm_epsilon": 1e-5,
        "num_key_value_heads": same_as("num_attention_heads"),
        "hidden_act": Key("hidden_act", "activation", "relu"),
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        "position_embedding_type": "learned_absolute",
        "gated_mlp": False,
        "qkv_bias": Key("enable_bias", "flag", True),
        "dense_bias": same_as("qkv_bias"),
        "mlp_bias": same_as("qkv_bias"),
        (): lambda c, m: c.only("word_embed_proj_dim", m["hidden_size"]) or (),  # else there are projections
    },
    rope=None,
    only={
        "do_layer_norm_before": (True,),
        "_remove_final_layer_norm": (False,),
        "layer_norm_elementwise_affine": (True,),
    },
    unused=("dropout", "layerdrop", "init_std", "activation_dropout"),
    modules={
        "transformer.vocab_embedding": "model.decoder.embed_tokens",
        # The first two rows were meant for padding; transformers skips them.
        "transformer.position_embedding": Part("model.decoder.embed_positions", behind(2)),
        "transformer.ln_f": "model.decoder.final_layer_norm",
        "lm_head": "lm_head",
    },
    layer_modules={
        "input_layernorm": _OPT + "self_attn_layer_norm",
        "attention.qkv": tuple(_OPT + f"self_attn.{name}_proj" for name in "qkv"),
        "attention.dense": _OPT + "self_attn.out_proj",
        "post_layernorm": _OPT + "final_layer_norm",
        "mlp.fc": _OPT + "fc1",
        "mlp.proj": _OPT + "fc2",
    },
)
