"""OLMo 1 (layer norms without parameters, clipped q, k and v) and OLMo 2 (norms behind attention and MLP)."""

from __future__ import annotations

from dataclasses import replace

from precast.quantize.families.family import ATTENTION_BIAS, Family, Key
from precast.quantize.families.llama import LAYER_MODULES, LLAMA_LIKE, MODULES, QK_NORM_MODULES

_NORMS = ("input_layernorm", "post_layernorm")
_WITHOUT_NORMS = {name: parts for name, parts in LAYER_MODULES.items() if name not in _NORMS}

OLMO: Family = replace(
    LLAMA_LIKE,
    model_type="olmo",
    architecture="OlmoForCausalLM",
    title="OLMo",
    models="OLMo 1",
    settings={
        **ATTENTION_BIAS,
        "norm_type": "layer_norm",
        "norm_gain_folded": True,
        "norm_epsilon": 1e-5,
        "clip_qkv": Key("clip_qkv", "number_or_none"),
    },
    only={"pretraining_tp": (1,)},
    modules={name: part for name, part in MODULES.items() if name != "transformer.ln_f"},
    layer_modules=_WITHOUT_NORMS,
)

OLMO2: Family = replace(
    OLMO,
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    title="OLMo 2",
    models="OLMo 2",
    settings={
        **ATTENTION_BIAS,
        "norm_epsilon": Key("rms_norm_eps", "number", 1e-5),
        "norm_placement": "post",
        "qk_norm": "rms_full",
    },
    modules=MODULES,
    layer_modules={
        **_WITHOUT_NORMS,
        **QK_NORM_MODULES,
        "attention.post_layernorm": "model.layers.{i}.post_attention_layernorm",
        "mlp.post_layernorm": "model.layers.{i}.post_feedforward_layernorm",
    },
)
