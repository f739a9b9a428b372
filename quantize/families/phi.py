"""Phi-3, 3.5 and 4: q/k/v in one weight, gate and up in another, longrope."""

from __future__ import annotations

from dataclasses import replace

from precast.quantize.families.family import Family, Gguf, Key, Part
from precast.quantize.families.llama import GGUF, LAYER_MODULES, LLAMA_LIKE
from precast.quantize.families.rope_settings import Rope
from precast.quantize.families.selections import concatenated, fused, half
from precast.quantize.families.windows import every_layer

_ATTENTION, _MLP = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."

_UNFUSED = tuple(f"blk.{{i}}.{name}" for name in ("attn_q", "attn_k", "attn_v", "ffn_gate"))

PHI3: Family = replace(
    LLAMA_LIKE,
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    title="Phi-3",
    models="Phi-3, Phi-3.5 (mini), Phi-4, Phi-4 mini",
    settings={
        "max_position_embeddings": Key("max_position_embeddings", default=4096),
        "norm_epsilon": Key("rms_norm_eps", "number", 1e-5),
        ("sliding_window", "layer_types"): every_layer(),
    },
    rope=Rope(partial=1.0, original=4096, renamed={"su": "longrope", "yarn": "longrope"}),
    only={"attention_bias": (False,), "lm_head_bias": (False,), "mlp_bias": (False,), "full_attn_mod": (1,)},
    unused=("embd_layer_norm", "interpolate_factor"),  # of Phi-4 mini; nothing reads them
    layer_modules={
        **LAYER_MODULES,
        "attention.qkv": fused(_ATTENTION + "qkv_proj", concatenated),
        "mlp.fc": Part(_MLP + "gate_up_proj", half(0)),
        "mlp.gate": Part(_MLP + "gate_up_proj", half(1)),
    },
    gguf=Gguf(
        "phi3",
        {
            **{stem: module for stem, module in GGUF.items() if stem not in _UNFUSED},
            "blk.{i}.attn_qkv": _ATTENTION + "qkv_proj",
            "blk.{i}.ffn_up": _MLP + "gate_up_proj",
        },
        keys={
            "sliding_window": "attention.sliding_window",
            "original_max_position_embeddings": "rope.scaling.original_context_length",
        },
    ),
)
