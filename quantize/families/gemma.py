"""Gemma 1, 2 and 3 (text). Their norms multiply by 1 + the stored gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from precast.quantize.families.config_reader import ConfigReader
from precast.quantize.families.family import ATTENTION_BIAS, Family, Gguf, Key, Part
from precast.quantize.families.llama import GGUF, LAYER_MODULES, LLAMA_LIKE, MODULES, QK_NORM_GGUF
from precast.quantize.families.rope_settings import Rope
from precast.quantize.families.windows import pattern

_LAYER = "model.layers.{i}."
_TANH_GELUS = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")


def _gain(module: str) -> Part:
    return Part(module, plus=1.0)


def _embedding_multiplier(c: ConfigReader, m: dict[str, Any]) -> float:
    """√hidden, in the dtype of the weights, as the models were trained."""
    root = np.float32(m["hidden_size"] ** 0.5)
    return float(root if m["dtype"] == "float32" else root.astype(ml_dtypes.bfloat16))


def _old_activation(c: ConfigReader, m: dict[str, Any]) -> str:
    """Gemma 1's configs say `gelu` where the models were trained with its tanh form (transformers 4.x says so too).
    Which of the two keys counts differs between versions of transformers, so that no other is taken."""
    c.only("hidden_act", "gelu", *_TANH_GELUS)
    c.only("hidden_activation", *_TANH_GELUS)
    return "gelu_tanh"


_GAINS: dict[str, Any] = {
    "input_layernorm": _gain(_LAYER + "input_layernorm"),
    "post_layernorm": _gain(_LAYER + "post_attention_layernorm"),
}
_SANDWICH: dict[str, Any] = {
    "input_layernorm": _gain(_LAYER + "input_layernorm"),
    "attention.post_layernorm": _gain(_LAYER + "post_attention_layernorm"),
    "post_layernorm": _gain(_LAYER + "pre_feedforward_layernorm"),
    "mlp.post_layernorm": _gain(_LAYER + "post_feedforward_layernorm"),
}
_COMMON: dict[Any, Any] = {
    "head_size": Key("head_dim", default=256),
    "max_position_embeddings": Key("max_position_embeddings", default=8192),
    "tie_word_embeddings": Key("tie_word_embeddings", "flag", True),
    "embedding_multiplier": _embedding_multiplier,
    **ATTENTION_BIAS,
}

GEMMA: Family = replace(
    LLAMA_LIKE,
    model_type="gemma",
    architecture="GemmaForCausalLM",
    title="Gemma",
    models="Gemma 1, CodeGemma",
    settings={**_COMMON, "hidden_act": _old_activation},
    only={"use_bidirectional_attention": (False,)},
    modules={**MODULES, "transformer.ln_f": _gain("model.norm")},
    layer_modules={**LAYER_MODULES, **_GAINS},
)

_GGUF2 = {
    **GGUF,
    "blk.{i}.post_attention_norm": _LAYER + "post_attention_layernorm",
    "blk.{i}.ffn_norm": _LAYER + "pre_feedforward_layernorm",
    "blk.{i}.post_ffw_norm": _LAYER + "post_feedforward_layernorm",
}


def _query_scale(large: int) -> Any:
    """GGUF leaves query_pre_attn_scalar out: it is the head size, but in the 27B model, which has `large` layers."""

    def more(config: dict[str, Any]) -> dict[str, Any]:
        shared = config["hidden_size"] // config["num_attention_heads"]
        big = config["num_hidden_layers"] == large
        return {"query_pre_attn_scalar": shared if big else config["head_dim"]}

    return more


GEMMA2: Family = replace(
    GEMMA,
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    title="Gemma 2",
    models="Gemma 2",
    settings={
        **_COMMON,
        "num_key_value_heads": Key("num_key_value_heads", default=4),
        "hidden_act": Key("hidden_activation", "activation", "gelu_pytorch_tanh"),
        "norm_placement": "sandwich",
        "attention_scale": lambda c, m: c.number("query_pre_attn_scalar", 256) ** -0.5,
        "attn_logit_softcapping": Key("attn_logit_softcapping", "number_or_none", 50.0),
        "final_logit_softcapping": Key("final_logit_softcapping", "number_or_none", 30.0),
        ("sliding_window", "layer_types"): pattern(2),
    },
    layer_modules={**LAYER_MODULES, **_SANDWICH},
    only={"use_bidirectional_attention": (False,)},
    # hidden_activation is what counts, old configs carry both; transformers 5 writes the pattern and does not read it
    unused=("hidden_act", "_sliding_window_pattern"),
    gguf=Gguf(
        "gemma2",
        _GGUF2,
        keys={
            "sliding_window": "attention.sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        more=_query_scale(46),
    ),
)

GEMMA3: Family = replace(
    GEMMA2,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    title="Gemma 3 (text)",
    models="Gemma 3 270M and 1B",
    settings={
        **GEMMA2.settings,
        "max_position_embeddings": Key("max_position_embeddings", default=131072),
        "qk_norm": "rms_head",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": Key("final_logit_softcapping", "number_or_none", None),
        ("sliding_window", "layer_types"): pattern(6),
    },
    rope=Rope(base=1_000_000.0, local_base=10_000.0),
    # transformers reads attn_logit_softcapping of Gemma 3 and never applies it
    only={"use_bidirectional_attention": (False,), "attn_logit_softcapping": ()},
    layer_modules={
        **LAYER_MODULES,
        **_SANDWICH,
        "attention.q_layernorm": _gain(_LAYER + "self_attn.q_norm"),
        "attention.k_layernorm": _gain(_LAYER + "self_attn.k_norm"),
    },
    gguf=Gguf(
        "gemma3",
        _GGUF2 | QK_NORM_GGUF,
        keys={"sliding_window": "attention.sliding_window"},
        more=_query_scale(62),
    ),
)
