"""Mixtures of experts: Mixtral, Qwen 2 and 3 with experts, OLMoE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precast.checkpoint import MoeConfig
from precast.quantize.families.config_reader import ConfigReader
from precast.quantize.families.family import ATTENTION_BIAS, Family, Key, Parts
from precast.quantize.families.llama import LAYER_MODULES, LLAMA_LIKE, QK_NORM_MODULES
from precast.quantize.families.rope_settings import Rope
from precast.quantize.families.windows import every_layer

_MLP = "model.layers.{i}.mlp."


def _experts(
    c: ConfigReader, m: dict[str, Any], size: str, count: str, per_token: int, layers: tuple[int, ...] | None = None
) -> MoeConfig:
    """`size` and `count`: the keys of an expert's size and of how many there are. `layers`: those with experts; None:
    all."""
    return MoeConfig(
        num_experts=c.integer(count),
        num_experts_per_tok=c.integer("num_experts_per_tok", per_token),
        intermediate_size=m["intermediate_size"] if size == "intermediate_size" else c.integer(size),
        norm_topk_prob=c.flag("norm_topk_prob", False),
        layers=tuple(range(m["num_hidden_layers"])) if layers is None else layers,
        shared_expert_intermediate_size=0,
    )


def _sparse_layers(c: ConfigReader, m: dict[str, Any]) -> tuple[int, ...]:
    """Qwen: every `decoder_sparse_step`-th layer, but for those that have an MLP."""
    step, dense = c.integer("decoder_sparse_step", 1), c.items("mlp_only_layers") or []
    return tuple(i for i in range(m["num_hidden_layers"]) if i not in dense and (i + 1) % step == 0)


def _modules(mlp: str, gate: str, up: str, down: str) -> dict[str, Parts]:
    """The router and the experts, under `mlp`."""
    return {
        "mlp.router": mlp + "gate",
        "mlp.experts.{e}.fc": mlp + "experts.{e}." + gate,
        "mlp.experts.{e}.gate": mlp + "experts.{e}." + up,
        "mlp.experts.{e}.proj": mlp + "experts.{e}." + down,
    }


_EXPERTS = _modules(_MLP, "gate_proj", "up_proj", "down_proj")
_NO_MLP = {name: parts for name, parts in LAYER_MODULES.items() if not name.startswith("mlp.")}
# Windows of the Qwen models with experts differ between versions of transformers; no published model has one.
_NO_WINDOW: dict[str, tuple[Any, ...]] = {"use_sliding_window": (False,)}
_WINDOW_KEYS = ("sliding_window", "max_window_layers", "layer_types")

MIXTRAL: Family = replace(
    LLAMA_LIKE,
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    title="Mixtral",
    models="Mixtral 8x7B, 8x22B",
    settings={
        "num_key_value_heads": Key("num_key_value_heads", default=8),
        "max_position_embeddings": Key("max_position_embeddings", default=4096 * 32),
        "norm_epsilon": Key("rms_norm_eps", "number", 1e-5),
        "moe": lambda c, m: replace(_experts(c, m, "intermediate_size", "num_local_experts", 2), norm_topk_prob=True),
        ("sliding_window", "layer_types"): every_layer(),
    },
    rope=Rope(base=1_000_000.0),
    layer_modules={**_NO_MLP, **_modules("model.layers.{i}.block_sparse_moe.", "w1", "w3", "w2")},
)

QWEN2_MOE: Family = replace(
    LLAMA_LIKE,
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    title="Qwen 2 MoE",
    models="Qwen 1.5 MoE, Qwen 2 57B-A14B",
    settings={
        "max_position_embeddings": Key("max_position_embeddings", default=32768),
        "qkv_bias": Key("qkv_bias", "flag", True),
        "moe": lambda c, m: replace(
            _experts(c, m, "moe_intermediate_size", "num_experts", 4, _sparse_layers(c, m)),
            shared_expert_intermediate_size=c.integer("shared_expert_intermediate_size", 5632),
        ),
    },
    only=_NO_WINDOW,
    unused=_WINDOW_KEYS,
    layer_modules={
        **LAYER_MODULES,
        **_EXPERTS,
        "mlp.shared_expert.fc": _MLP + "shared_expert.gate_proj",
        "mlp.shared_expert.gate": _MLP + "shared_expert.up_proj",
        "mlp.shared_expert.proj": _MLP + "shared_expert.down_proj",
        "mlp.shared_expert_gate": _MLP + "shared_expert_gate",
    },
)

QWEN3_MOE: Family = replace(
    LLAMA_LIKE,
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    title="Qwen 3 MoE",
    models="Qwen 3 30B-A3B, 235B-A22B",
    renamed={"num_local_experts": "num_experts"},
    settings={
        "num_key_value_heads": Key("num_key_value_heads", default=4),
        "max_position_embeddings": Key("max_position_embeddings", default=32768),
        **ATTENTION_BIAS,
        "qk_norm": "rms_head",
        "moe": lambda c, m: _experts(c, m, "moe_intermediate_size", "num_experts", 8, _sparse_layers(c, m)),
    },
    only=_NO_WINDOW,
    unused=_WINDOW_KEYS,
    layer_modules={**LAYER_MODULES, **QK_NORM_MODULES, **_EXPERTS},
)

OLMOE: Family = replace(
    LLAMA_LIKE,
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    title="OLMoE",
    models="OLMoE 1B-7B",
    settings={
        "max_position_embeddings": Key("max_position_embeddings", default=4096),
        "norm_epsilon": Key("rms_norm_eps", "number", 1e-5),
        **ATTENTION_BIAS,
        "qk_norm": "rms_full",
        "moe": lambda c, m: _experts(c, m, "intermediate_size", "num_experts", 8),
    },
    only={"clip_qkv": ()},  # behind the norms of q and k, where no other family clips
    layer_modules={**_NO_MLP, **QK_NORM_MODULES, **_EXPERTS},
)
