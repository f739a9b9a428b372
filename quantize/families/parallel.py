"""Phi-2, Falcon, StableLM and Cohere: attention and MLP side by side (most of them), and StarCoder2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precast.checkpoint import ModelConfig
from precast.quantize.families.config_reader import ConfigReader
from precast.quantize.families.family import ATTENTION_BIAS, Family, Key, Part, same_as
from precast.quantize.families.gpt import BIASES, LAYER_NORMS, four_times_hidden
from precast.quantize.families.llama import LAYER_MODULES, LLAMA_LIKE, MODULES
from precast.quantize.families.rope_settings import Rope
from precast.quantize.families.selections import fused, grouped, interleaved
from precast.quantize.families.windows import FULL, every_layer, pattern

_LAYER, _ATTENTION, _MLP = "model.layers.{i}.", "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."

_SHARED_NORM = {name: parts for name, parts in LAYER_MODULES.items() if name != "post_layernorm"}

PHI: Family = replace(
    LLAMA_LIKE,
    model_type="phi",
    architecture="PhiForCausalLM",
    title="Phi-2",
    models="Phi-1, Phi-1.5, Phi-2",
    settings={
        **LAYER_NORMS,
        **BIASES,
        "norm_epsilon": Key("layer_norm_eps", "number", 1e-5),
        "hidden_act": Key("hidden_act", "activation", "gelu_new"),
        "parallel_residual": True,
        "parallel_shared_norm": True,
        "gated_mlp": False,
        "lm_head_bias": True,
    },
    rope=Rope(partial=0.5),
    only={"qk_layernorm": (False,)},
    modules={**MODULES, "transformer.ln_f": "model.final_layernorm"},
    layer_modules={
        "input_layernorm": _LAYER + "input_layernorm",
        "attention.qkv": LAYER_MODULES["attention.qkv"],
        "attention.dense": _ATTENTION + "dense",
        "mlp.fc": _MLP + "fc1",
        "mlp.proj": _MLP + "fc2",
    },
)


def _falcon_kv_heads(c: ConfigReader, m: dict[str, Any]) -> int:
    """`num_kv_heads` counts in the newer architecture; the older one has one for all, or one for each."""
    heads: int = m["num_attention_heads"]
    given, one = c.integer("num_kv_heads", heads), c.flag("multi_query", True)
    m["new_decoder_architecture"] = c.flag("new_decoder_architecture", False)
    if m["new_decoder_architecture"]:
        return given
    return 1 if one else heads


def _falcon_parallel(c: ConfigReader, m: dict[str, Any]) -> tuple[bool, bool]:
    """→ (parallel_residual, parallel_shared_norm)."""
    new, parallel = m.pop("new_decoder_architecture"), c.flag("parallel_attn", True)
    norms = c.integer("num_ln_in_parallel_attn", 2 if new else 1)
    if norms > 2 or (norms == 2 and not new) or (new and not parallel):
        raise c.refuse(f"num_ln_in_parallel_attn = {norms} with parallel_attn = {parallel} is not supported")
    return parallel, parallel and norms == 1


def _falcon_norm(separate: str, usual: str) -> Any:
    def parts(config: ModelConfig) -> tuple[Part, ...]:
        apart = config.parallel_residual and not config.parallel_shared_norm
        return (Part("transformer.h.{i}." + (separate if apart else usual)),)

    return parts


FALCON: Family = replace(
    LLAMA_LIKE,
    model_type="falcon",
    architecture="FalconForCausalLM",
    title="Falcon",
    models="Falcon 7B, 40B, 180B, Falcon 2 11B",
    renamed={
        "n_embed": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_head_kv": "num_kv_heads",
        "ffn_hidden_size": "intermediate_size",
        "activation": "hidden_act",
    },
    settings={
        **LAYER_NORMS,
        "intermediate_size": four_times_hidden,
        "num_key_value_heads": _falcon_kv_heads,
        "hidden_act": Key("hidden_act", "activation", "gelu"),
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        ("parallel_residual", "parallel_shared_norm"): _falcon_parallel,
        "gated_mlp": False,
        "qkv_bias": Key("bias", "flag", False),
        "dense_bias": same_as("qkv_bias"),
        "mlp_bias": same_as("qkv_bias"),
    },
    rope=Rope(),
    only={"alibi": (False,)},
    base="transformer.",
    modules={
        "transformer.vocab_embedding": "transformer.word_embeddings",
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    layer_modules={
        "input_layernorm": _falcon_norm("ln_attn", "input_layernorm"),
        "attention.qkv": fused("transformer.h.{i}.self_attention.query_key_value", grouped),
        "attention.dense": "transformer.h.{i}.self_attention.dense",
        "post_layernorm": _falcon_norm("ln_mlp", "post_attention_layernorm"),
        "mlp.fc": "transformer.h.{i}.mlp.dense_h_to_4h",
        "mlp.proj": "transformer.h.{i}.mlp.dense_4h_to_h",
    },
)


_HEAD_NORMS = ("attention.q_layernorm", "attention.k_layernorm")


def _head_norms(name: str) -> Any:
    """A norm of its own for each head."""

    def parts(config: ModelConfig) -> tuple[Part, ...]:
        heads = config.num_attention_heads if name == "q" else config.num_key_value_heads
        return tuple(Part(f"{_ATTENTION}{name}_layernorm.norms.{head}") for head in range(heads))

    return parts


STABLELM: Family = replace(
    LLAMA_LIKE,
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    title="StableLM",
    models="StableLM 2, StableLM 3B",
    settings={
        **LAYER_NORMS,
        "norm_epsilon": Key("layer_norm_eps", "number", 1e-5),
        "max_position_embeddings": Key("max_position_embeddings", default=4096),
        "qkv_bias": Key("use_qkv_bias", "flag", False),
        "qk_norm": lambda c, m: "layer_head" if c.flag("qk_layernorm", False) else None,
        "parallel_residual": Key("use_parallel_residual", "flag", False),
        "parallel_shared_norm": same_as("parallel_residual"),
    },
    rope=Rope(partial=0.25),
    layer_modules={
        **LAYER_MODULES,
        "attention.q_layernorm": _head_norms("q"),
        "attention.k_layernorm": _head_norms("k"),
    },
)

STARCODER2: Family = replace(
    LLAMA_LIKE,
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    title="StarCoder2",
    models="StarCoder2",
    settings={
        **LAYER_NORMS,
        "norm_epsilon": Key("norm_epsilon", "number", 1e-5),
        "num_key_value_heads": Key("num_key_value_heads", default=2),
        "max_position_embeddings": Key("max_position_embeddings", default=4096),
        "hidden_act": Key("hidden_act", "activation", "gelu_pytorch_tanh"),
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        "gated_mlp": False,
        "qkv_bias": Key("use_bias", "flag", True),
        "dense_bias": same_as("qkv_bias"),
        "mlp_bias": same_as("qkv_bias"),
        ("sliding_window", "layer_types"): every_layer(),
    },
    only={"norm_type": ("layer_norm",), "mlp_type": ("default",)},
    unused=("residual_dropout", "embedding_dropout"),
    layer_modules={
        **{name: parts for name, parts in LAYER_MODULES.items() if not name.startswith("mlp.")},
        "mlp.fc": _MLP + "c_fc",
        "mlp.proj": _MLP + "c_proj",
    },
)

COHERE: Family = replace(
    LLAMA_LIKE,
    model_type="cohere",
    architecture="CohereForCausalLM",
    title="Cohere",
    models="Command R, Command R+, Aya 23",
    settings={
        "norm_type": "layer_norm",
        "norm_epsilon": Key("layer_norm_eps", "number", 1e-5),
        "max_position_embeddings": Key("max_position_embeddings", default=8192),
        "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
        "logits_multiplier": Key("logit_scale", "number", 0.0625),
        **ATTENTION_BIAS,
        "qk_norm": lambda c, m: "layer_head" if c.flag("use_qk_norm", False) else None,
        "parallel_residual": True,
        "parallel_shared_norm": True,
    },
    rope=Rope(base=500_000.0),
    layer_modules={
        **_SHARED_NORM,
        "attention.qkv": (
            Part(_ATTENTION + "q_proj", interleaved("q")),
            Part(_ATTENTION + "k_proj", interleaved("k")),
            Part(_ATTENTION + "v_proj"),
        ),
        "attention.q_layernorm": Part(_ATTENTION + "q_norm", interleaved("q"), flat=True),
        "attention.k_layernorm": Part(_ATTENTION + "k_norm", interleaved("k"), flat=True),
    },
)

COHERE2: Family = replace(
    COHERE,
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    title="Cohere 2",
    models="Command R7B, Command A, Tiny Aya",
    settings={
        **COHERE.settings,
        "qk_norm": None,
        ("sliding_window", "layer_types"): pattern(4),
        "no_rope_layers": lambda c, m: tuple(
            layer for layer, kind in enumerate(m["layer_types"] or (FULL,) * m["num_hidden_layers"]) if kind == FULL
        ),
    },
    rope=Rope(),
    only={
        "order_of_interleaved_layers": ("local_attn_first",),
        "position_embedding_type": ("rope_gptj",),
        "rotary_pct": (1.0,),
        "use_embedding_sharing": (True,),
        "use_gated_activation": (True,),
        "use_parallel_block": (True,),
        "use_parallel_embedding": (False,),
        "use_qk_norm": (False,),
    },
    unused=("_sliding_window_pattern", "layer_switch"),  # sliding_window_pattern or layer_types says it
    layer_modules={name: parts for name, parts in COHERE.layer_modules.items() if name not in _HEAD_NORMS},
)
