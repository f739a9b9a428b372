"""What the values of a checkpoint's config.json must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.checkpoint import ModelConfig, MoeConfig

# Names of a layer's tensors are made before the weights are looked at: a damaged number must not make billions.
MAX_LAYERS = 10_000
MAX_EXPERTS = 1_024
MAX_MODULES = 50_000

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu2")

_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_size",
    "max_position_embeddings",
)
_FLAGS = (
    "norm_bias",
    "norm_gain_folded",
    "embedding_norm",
    "parallel_residual",
    "parallel_shared_norm",
    "gated_mlp",
    "qkv_bias",
    "dense_bias",
    "mlp_bias",
    "lm_head_bias",
    "tie_word_embeddings",
)
_NUMBERS = ("rotary_base", "norm_epsilon", "embedding_multiplier", "residual_multiplier", "logits_multiplier")
_NUMBERS_OR_NULL = (
    "local_rotary_base",
    "clip_qkv",
    "attention_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
_CHOICES: dict[str, tuple[Any, ...]] = {
    "mapping": ({"world_size": 1, "tp_size": 1, "pp_size": 1},),
    "dtype": ("float32", "bfloat16"),
    "position_embedding_type": ("rope", "learned_absolute", "alibi", "none"),
    "norm_type": ("rms_norm", "layer_norm"),
    "norm_placement": ("pre", "post", "sandwich"),
    "qk_norm": (None, "rms_head", "rms_full", "layer_head"),
    "hidden_act": ACTIVATIONS,
}
_QUANTIZATION = {"quant_algo": (None, "W8A8_DYNAMIC"), "kv_cache_quant_algo": (None,), "group_size": (None,)}


def model_faults(config: ModelConfig) -> list[str]:
    """What is wrong with a config, one sentence each: values of wrong types and ranges first, then what does not fit
    together. Values may be of any type."""
    return list(_values(config)) or list(_together(config))


def _is_integer(value: Any, least: int = 1) -> bool:
    return type(value) is int and least <= value < 1 << 31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e30


def _is_scaling(value: Any) -> bool:
    """Rope settings. Which types there are is the builder's to know (builder/rope.py)."""
    if value is None:
        return True
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    rest = (v for key, v in value.items() if key != "type")
    return all(isinstance(v, bool) or _is_number(v) or (isinstance(v, list) and all(map(_is_number, v))) for v in rest)


def _values(config: ModelConfig) -> Iterator[str]:
    for name in _INTEGERS:
        if not _is_integer(value := getattr(config, name)):
            yield f"{name} must be a positive integer, not {value!r}"
    for name in _FLAGS:
        if not isinstance(value := getattr(config, name), bool):
            yield f"{name} must be true or false, not {value!r}"
    for name in (*_NUMBERS, *_NUMBERS_OR_NULL):
        value = getattr(config, name)
        if not _is_number(value) and not (value is None and name in _NUMBERS_OR_NULL):
            yield f"{name} must be a positive number, not {value!r}"
    for name, allowed in _CHOICES.items():
        if (value := getattr(config, name)) not in allowed:
            yield f"{name} {value!r} is not supported; {' or '.join(map(str, allowed))} is"
    for name in ("rotary_scaling", "local_rotary_scaling"):
        if not _is_scaling(value := getattr(config, name)):
            yield f"{name} must hold a type and positive numbers, not {value!r}"
    for name, kinds in (("rotation", dict | None), ("pretrained_config", dict)):
        if not isinstance(value := getattr(config, name), kinds):
            yield f"{name} must be {'null or ' if kinds is not dict else ''}an object, not {value!r}"
    if config.sliding_window is not None and not _is_integer(config.sliding_window):
        yield f"sliding_window must be a positive integer or null, not {config.sliding_window!r}"
    if not _is_integer(config.rotary_dim, 0):
        yield f"rotary_dim must be an integer, not {config.rotary_dim!r}"
    quantization = config.quantization
    for name, values in _QUANTIZATION.items():
        if (value := getattr(quantization, name)) not in values:
            yield f"{name} {value!r} is not supported; {' or '.join(map(str, values))} is"
    if not _is_integer(quantization.activation_group_size, 0):
        yield f"activation_group_size must be a whole number, not {quantization.activation_group_size!r}"
    if not all(isinstance(pattern, str) for pattern in quantization.exclude_modules):
        yield "exclude_modules must hold texts"


def _together(config: ModelConfig) -> Iterator[str]:
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if layers > MAX_LAYERS:
        yield f"{layers} layers; at most {MAX_LAYERS} are supported"
    elif config.layer_types is not None and len(config.layer_types) != layers:
        yield f"layer_types names {len(config.layer_types)} layers instead of {layers}"
    if heads % config.num_key_value_heads:
        yield f"{heads} attention heads cannot share {config.num_key_value_heads} key/value heads"
    rope = config.position_embedding_type == "rope"
    if config.rotary_dim % 2 or config.rotary_dim > config.head_size or (config.rotary_dim > 0) != rope:
        yield f"rotary_dim must be even and at most head_size, and 0 without rope; it is {config.rotary_dim}"
    if any(kind not in ("full_attention", "sliding_attention") for kind in config.layer_types or ()):
        yield "layer_types may hold full_attention and sliding_attention"
    elif ("sliding_attention" in (config.layer_types or ())) != (config.sliding_window is not None):
        yield "layer_types with sliding_attention and sliding_window belong together"
    if any(not _is_integer(layer, 0) or layer >= layers for layer in config.no_rope_layers):
        yield "no_rope_layers names layers that do not exist"
    alibi, slopes = config.position_embedding_type == "alibi", config.alibi_slopes or ()
    if alibi != (len(slopes) == heads) or not all(map(_is_number, slopes)):
        yield "alibi_slopes must hold one positive number for each attention head, and be null without alibi"
    if config.norm_bias and config.norm_gain_folded:
        yield "norms with a bias and without a gain are not supported"
    if config.parallel_residual and config.norm_placement != "pre":
        yield "parallel_residual needs norm_placement pre"
    if config.parallel_shared_norm and not config.parallel_residual:
        yield "parallel_shared_norm needs parallel_residual"
    if config.lm_head_bias and config.tie_word_embeddings:
        yield "a head that is tied to the embedding and has a bias is not supported"
    if config.moe is not None:
        yield from _experts(config, config.moe)


def _experts(config: ModelConfig, moe: MoeConfig) -> Iterator[str]:
    if not all(map(_is_integer, (moe.num_experts, moe.num_experts_per_tok, moe.intermediate_size))):
        yield "moe needs positive integers as num_experts, num_experts_per_tok and intermediate_size"
    elif moe.num_experts > MAX_EXPERTS or moe.num_experts_per_tok > moe.num_experts:
        yield f"{moe.num_experts_per_tok} of {moe.num_experts} experts; at most all, and {MAX_EXPERTS} are supported"
    elif moe.num_experts * config.num_hidden_layers > MAX_MODULES:
        yield f"{moe.num_experts} experts in {config.num_hidden_layers} layers are too many"
    if not isinstance(moe.norm_topk_prob, bool) or not _is_integer(moe.shared_expert_intermediate_size, 0):
        yield "moe: norm_topk_prob must be true or false and shared_expert_intermediate_size an integer"
    if any(not _is_integer(layer, 0) or layer >= config.num_hidden_layers for layer in moe.layers):
        yield "moe.layers names layers that do not exist"
    if not config.gated_mlp or config.mlp_bias:
        yield "experts must be gated and without biases"
