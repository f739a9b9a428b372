"""A tiny random model of every family, saved as transformers saves it, whose every feature moves the logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from precast.quantize.families import FAMILIES
from tests.tiny import VOCAB

Config = dict[str, Any]

LAYERS = 4
COMMON: Config = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class TinyFamily:
    """`config`: what is not COMMON, as transformers 5 takes it. `old`: the config.json that transformers 5 wrote → how
    transformers 4 writes the same model. `renamed`: COMMON's keys under the family's names (None: it has no such)."""

    model_type: str
    config: Config = field(default_factory=dict)
    old: Callable[[Config], Config] = lambda config: old_rope(config)
    renamed: dict[str, str | None] = field(default_factory=dict)

    def settings(self) -> Config:
        named = {self.renamed.get(key, key): value for key, value in COMMON.items()}
        return {key: value for key, value in named.items() if key is not None} | self.config

    def save(self, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
        """Saves it into `folder`; → the model in eval mode."""
        architecture = FAMILIES[self.model_type].architecture
        made = transformers.CONFIG_MAPPING[self.model_type](**self.settings())
        torch.manual_seed(seed)
        model = getattr(transformers, architecture)._from_config(made, attn_implementation="eager")
        with torch.no_grad():
            for name, weight in model.named_parameters():
                randomize(name, weight)
        model = model.to(dtype).eval()
        model.save_pretrained(folder)
        return model


QUERY_KEY = ("q_proj", "k_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv")
ROUTERS = ("mlp.gate.weight", "shared_expert_gate.weight", "router.weight")


def randomize(name: str, weight: torch.Tensor) -> None:
    """Peaked attention, gains and biases that matter, experts that are told apart, large logits."""
    if name.endswith(".bias"):
        weight.normal_(0, 0.3)
    elif weight.ndim == 1 or "norm" in name or ".ln_" in name:
        gains = torch.rand_like(weight) + 0.5
        # Gemma's gains are around zero
        weight.copy_(gains - 1 if float(weight.detach().abs().max()) == 0 else gains)
    elif name.endswith(ROUTERS):
        weight.normal_(0, 0.5)
    elif any(part in name for part in QUERY_KEY):
        weight.normal_(0, 0.15)
    else:
        weight.normal_(0, 0.08)


def old_rope(config: Config) -> Config:
    """`rope_parameters` as `rope_theta` and `rope_scaling`, and the older name of dtype."""
    old = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}
    old["torch_dtype"] = config.get("dtype")
    rope = dict(config.get("rope_parameters") or {})
    if rope:
        old["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        old["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    return old


def without(*keys: str, **more: Any) -> Callable[[Config], Config]:
    """The old form without keys that only transformers 5 writes, and with others."""
    return lambda config: {k: v for k, v in old_rope(config).items() if k not in keys} | more


def write_old(folder: Path, family: TinyFamily) -> None:
    """Rewrites a saved model's config.json as transformers 4 has it."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(family.old(config)))


def _gemma3_old(config: Config) -> Config:
    old = {
        k: v
        for k, v in config.items()
        if k not in ("rope_parameters", "layer_types", "dtype", "_sliding_window_pattern")
    }
    rope = config["rope_parameters"]
    full = {k: v for k, v in rope["full_attention"].items() if k != "rope_theta"}
    return old | {
        "rope_theta": rope["full_attention"]["rope_theta"],
        "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
        "rope_scaling": full,
        "sliding_window_pattern": 3,
        "torch_dtype": "float32",
    }


def _phi3_old(config: Config) -> Config:
    old = old_rope(config)
    del old["rope_scaling"]["original_max_position_embeddings"]
    return old


def _gpt_neox_old(config: Config) -> Config:
    old = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype")}
    rope = config["rope_parameters"]
    return old | {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SLIDING = ["sliding_attention", "full_attention"]
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + 0.1 * i for i in range(9)],
    "long_factor": [1.5 + 0.5 * i for i in range(9)],
    "original_max_position_embeddings": 64,
}

GPT_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "num_key_value_heads": None,
}
OPT_NAMES = {"intermediate_size": "ffn_dim", "num_key_value_heads": None}
BLOOM_NAMES = {
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "num_key_value_heads": None,
    "intermediate_size": None,
    "max_position_embeddings": None,
}
MPT_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
    "num_key_value_heads": None,
    "intermediate_size": None,
}

TINY: dict[str, TinyFamily] = {
    family.model_type: family
    for family in (
        TinyFamily(
            "llama",
            {
                "attention_bias": True,
                "mlp_bias": True,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        ),
        TinyFamily("mistral", {"sliding_window": 40, "head_dim": 32}),
        TinyFamily(
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2, "tie_word_embeddings": True},
            without("layer_types"),
        ),
        TinyFamily("qwen3", {"head_dim": 40, "attention_bias": True}, without("layer_types")),
        TinyFamily("gemma", {"head_dim": 40}, without(hidden_act="gelu", hidden_activation=None)),
        TinyFamily(
            "gemma2",
            {
                "head_dim": 40,
                "sliding_window": 40,
                "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 4.0,
            },
            without("layer_types", hidden_act="gelu_pytorch_tanh", cache_implementation="hybrid"),
        ),
        TinyFamily(
            "gemma3_text",
            {
                "head_dim": 40,
                "sliding_window": 40,
                "query_pre_attn_scalar": 24,
                "final_logit_softcapping": 4.0,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                },
            },
            _gemma3_old,
        ),
        TinyFamily(
            "phi3",
            {
                "sliding_window": 40,
                "rope_parameters": _LONGROPE,
                "original_max_position_embeddings": 64,
            },
            _phi3_old,
        ),
        TinyFamily(
            "smollm3",
            {
                "no_rope_layer_interval": 2,
                "use_sliding_window": True,
                "sliding_window": 40,
                "attention_bias": True,
                "mlp_bias": True,
            },
            without("layer_types", "no_rope_layers"),
        ),
        TinyFamily(
            "granite",
            {
                "embedding_multiplier": 6.0,
                "residual_multiplier": 0.4,
                "attention_multiplier": 0.1,
                "logits_scaling": 0.5,
                "attention_bias": True,
                "mlp_bias": True,
            },
        ),
        TinyFamily("olmo", {"clip_qkv": 1.0}),
        TinyFamily("olmo2", {"attention_bias": True}),
        TinyFamily("gpt2", {"scale_attn_weights": False}, without(n_ctx=512), GPT_NAMES),
        TinyFamily(
            "gpt_neox",
            {"rope_parameters": ROPE | {"rope_theta": 5000.0, "partial_rotary_factor": 0.5}},
            _gpt_neox_old,
            {"num_key_value_heads": None},
        ),
        TinyFamily("gptj", {"rotary_dim": 16}, without(n_ctx=512, rotary=True), GPT_NAMES),
        TinyFamily("opt", {}, without(), OPT_NAMES),
        TinyFamily("phi", {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}),
        TinyFamily(
            "falcon",
            {"new_decoder_architecture": True, "bias": True, "activation": "gelu"},
            without("activation"),
            {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        ),
        TinyFamily(
            "stablelm",
            {
                "use_qkv_bias": True,
                "qk_layernorm": True,
                "use_parallel_residual": True,
                "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
            },
        ),
        TinyFamily("starcoder2", {"sliding_window": 40}),
        TinyFamily("cohere", {"use_qk_norm": True, "logit_scale": 0.5, "attention_bias": True}),
        TinyFamily(
            "cohere2",
            {"logit_scale": 0.5, "attention_bias": True, "sliding_window": 40},
            without("layer_types", sliding_window_pattern=4, layer_switch=4, rotary_pct=1.0, use_qk_norm=False),
        ),
        TinyFamily("bloom", {}, without(n_embed=96, seq_length=2048), BLOOM_NAMES),
        TinyFamily(
            "mpt",
            {"attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.1}},
            without(init_device="cpu", verbose=0),
            MPT_NAMES,
        ),
        TinyFamily("mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 40}),
        TinyFamily(
            "qwen2_moe",
            {
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 48,
                "shared_expert_intermediate_size": 80,
                "mlp_only_layers": [2],
            },
            without("layer_types"),
        ),
        TinyFamily(
            "qwen3_moe",
            {
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 48,
                "decoder_sparse_step": 2,
                "norm_topk_prob": True,
                "head_dim": 40,
                "attention_bias": True,
            },
            lambda config: old_rope(config) | {"num_experts": 6},
        ),
        TinyFamily("olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    )
}
