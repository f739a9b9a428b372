"""Inverse frequencies against those that transformers computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from precast.builder.rope import inverse_frequencies
from precast.checkpoint import ModelConfig
from precast.errors import BuildError

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"type": "default"},
    "linear": {"type": "linear", "factor": 4.0},
    "llama3": {"type": "llama3", **LLAMA3},
    "llama3 of factor 32": {"type": "llama3", **LLAMA3, "factor": 32.0},
    "yarn": {"type": "yarn", **YARN},
    "yarn with an attention factor": {"type": "yarn", **YARN, "attention_factor": 1.25},
    "yarn with betas": {"type": "yarn", **YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn untruncated": {"type": "yarn", **YARN, "truncate": False},
    "yarn as DeepSeek scales it": {"type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
}

LONGEST = 2048


def model_config(head_size: int, base: float, scaling: dict[str, Any] | None) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        dtype="float32",
        vocab_size=32,
        hidden_size=4 * head_size,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_size=head_size,
        max_position_embeddings=LONGEST,
        norm_epsilon=1e-6,
        rotary_base=base,
        rotary_dim=head_size,
        rotary_scaling=scaling,
    )


def transformers_embedding(head_size: int, base: float, scaling: dict[str, Any]) -> LlamaRotaryEmbedding:
    parameters = {"rope_theta": base, **scaling}
    parameters["rope_type"] = parameters.pop("type")
    config = LlamaConfig(
        hidden_size=4 * head_size,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST,
        rope_parameters=parameters,
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("head_size", [40, 64, 96, 128, 256])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_transformers(name: str, base: float, head_size: int) -> None:
    scaling = SCALINGS[name]
    theirs = transformers_embedding(head_size, base, scaling)
    ours, factor = inverse_frequencies(model_config(head_size, base, scaling), LONGEST)
    assert ours.dtype == np.float32
    assert factor == pytest.approx(float(theirs.attention_scaling), rel=1e-12)
    # Bit for bit, but for powers that numpy and torch round to different neighbours.
    np.testing.assert_array_max_ulp(ours, theirs.inv_freq.numpy(), maxulp=1)


@pytest.mark.parametrize("length", [1, LONGEST, LONGEST + 1, 3 * LONGEST])
def test_dynamic_frequencies_are_those_of_a_sequence_of_max_seq_len(length: int) -> None:
    scaling = {"type": "dynamic", "factor": 2.0}
    theirs = transformers_embedding(64, 10000.0, scaling)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs.config, "cpu", seq_len=length)
    ours, factor = inverse_frequencies(model_config(64, 10000.0, scaling), length)
    assert factor == 1.0
    np.testing.assert_array_max_ulp(ours, expected.numpy(), maxulp=1)


@pytest.mark.parametrize("factor", [None, 4.0])
@pytest.mark.parametrize("length", [64, 65])
def test_longrope_keeps_the_factors_of_max_seq_len(length: int, factor: float | None) -> None:
    scaling = {
        "type": "longrope",
        "short_factor": [1 + 0.1 * i for i in range(32)],
        "long_factor": [2.0 + i for i in range(32)],
        "original_max_position_embeddings": 64,
        **({"factor": factor} if factor else {}),
    }
    theirs = transformers_embedding(64, 10000.0, scaling)
    expected, attention = ROPE_INIT_FUNCTIONS["longrope"](theirs.config, "cpu", seq_len=length)
    ours, ours_attention = inverse_frequencies(model_config(64, 10000.0, scaling), length)
    assert ours_attention == pytest.approx(float(attention), rel=1e-12)
    np.testing.assert_array_max_ulp(ours, expected.numpy(), maxulp=1)
    assert (ours == inverse_frequencies(model_config(64, 10000.0, scaling), 64)[0]).all() == (length == 64)


def test_sliding_layers_have_frequencies_of_their_own() -> None:
    config = replace(model_config(64, 1e6, {"type": "linear", "factor": 8.0}), local_rotary_base=1e4)
    local, _ = inverse_frequencies(config, LONGEST, local=True)
    assert (local == inverse_frequencies(model_config(64, 1e4, None), LONGEST)[0]).all()


def test_no_scaling_means_default() -> None:
    plain = inverse_frequencies(model_config(64, 10000.0, None), LONGEST)
    named = inverse_frequencies(model_config(64, 10000.0, {"type": "default"}), LONGEST)
    assert (plain[0] == named[0]).all()


def test_an_unknown_scaling_is_refused_by_name() -> None:
    with pytest.raises(BuildError, match="ntk"):
        inverse_frequencies(model_config(64, 10000.0, {"type": "ntk"}), LONGEST)


def test_a_missing_parameter_is_named() -> None:
    scaling = {key: value for key, value in LLAMA3.items() if key != "low_freq_factor"}
    with pytest.raises(BuildError, match="low_freq_factor"):
        inverse_frequencies(model_config(64, 10000.0, {"type": "llama3", **scaling}), LONGEST)
