"""A checkpoint's config.json is checked before anything is built of it: nothing in it is ignored."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.builder.models.decoder import decoder
from precast.builder.rope import inverse_frequencies
from precast.checkpoint import ModelConfig, read_config
from precast.errors import CheckpointError, PrecastError
from tests.unit.test_graph import config

GOOD: dict[str, Any] = json.loads(json.dumps(config().to_json()))

MOE = {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 16, "norm_topk_prob": True, "layers": [0]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is not a precast checkpoint"),
        ({"format_version": 99}, "format version 99"),
        ({"colour": 1}, "unknown keys: colour"),
        ({"vocab_size": 0}, "vocab_size must be a positive integer"),
        ({"head_size": 2.5}, "head_size must be a positive integer, not 2.5"),
        ({"num_hidden_layers": 20_000}, "at most 10000"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"rotary_dim": 10}, "rotary_dim must be even and at most head_size"),
        ({"norm_epsilon": "tiny"}, "norm_epsilon must be a positive number"),
        ({"rotary_base": -1}, "rotary_base must be a positive number"),
        ({"qkv_bias": 1}, "qkv_bias must be true or false, not 1"),
        ({"dtype": "float16"}, "dtype 'float16' is not supported"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported; silu or gelu"),
        ({"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}, "mapping .* is not supported"),
        ({"rotary_scaling": [1]}, "rotary_scaling must hold a type"),
        ({"rotary_scaling": {"type": "linear", "factor": "2"}}, "rotary_scaling must hold a type"),
        ({"norm_placement": "middle"}, "norm_placement 'middle' is not supported"),
        ({"sliding_window": 4}, "belong together"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 4}, "names 1 layers instead of 2"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types may hold"),
        ({"no_rope_layers": [2]}, "no_rope_layers names layers that do not exist"),
        ({"position_embedding_type": "none"}, "0 without rope"),
        ({"position_embedding_type": "alibi", "rotary_dim": 0}, "one positive number for each attention head"),
        ({"parallel_shared_norm": True}, "parallel_shared_norm needs parallel_residual"),
        ({"lm_head_bias": True, "tie_word_embeddings": True}, "a head that is tied"),
        ({"moe": {"num_experts": 4}}, "not a complete checkpoint config"),
        ({"moe": MOE | {"num_experts_per_tok": 9}}, "9 of 8 experts"),
        ({"moe": MOE | {"layers": [7]}}, "moe.layers names layers that do not exist"),
        ({"moe": MOE | {"num_experts": 1.5}}, "moe needs positive integers"),
        ({"moe": MOE, "gated_mlp": False}, "experts must be gated"),
        ({"rotation": "yes"}, "rotation must be null or an object"),
        ({"quantization": {"quant_algo": "FP8"}}, "quant_algo 'FP8' is not supported"),
        ({"quantization": {"kv_cache_quant_algo": "INT8"}}, "kv_cache_quant_algo 'INT8' is not supported"),
        ({"quantization": {"group_size": 128}}, "group_size 128 is not supported"),
        ({"quantization": {"activation_group_size": -32}}, "activation_group_size must be a whole number"),
        ({"quantization": {"exclude_modules": "lm_head"}}, "exclude_modules must be a list"),
        ({"quantization": {"exclude_modules": [1]}}, "exclude_modules must hold texts"),
        ({"quantization": {"zero_point": True}}, "zero_point"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
)
def test_what_this_version_does_not_do_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"here.*{message}"):
        ModelConfig.from_json(GOOD | changes, "here")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    for text in ("{", "[]", "[" * 100_000, "\xff", " " * (5 << 20)):
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(CheckpointError, match=r"config\.json"):
            read_config(tmp_path)


VALUES = st.sampled_from([None, True, -1, 0, 1, 3, 64, 0.5, 1e40, float("nan"), "x", [], [1], {}, {"type": "yarn"}])


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), VALUES, min_size=1, max_size=3))
def test_any_values_are_refused_or_make_a_graph(changes: dict[str, Any]) -> None:
    with contextlib.suppress(PrecastError):
        model = ModelConfig.from_json(GOOD | changes, "here")
        decoder(model)
        inverse_frequencies(model, 64)
