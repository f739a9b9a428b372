"""config.json of transformers 4.x and 5.x, and what is refused in it."""

from __future__ import annotations

import contextlib
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import CONFIG_MAPPING, LlamaConfig, Phi3Config

from precast.checkpoint import ModelConfig
from precast.errors import SourceError
from precast.quantize.families import FAMILIES, family_of
from precast.quantize.families.config_reader import HARMLESS
from precast.quantize.families.family import Family, Part

# As Llama 3.2 1B and SmolLM2 are published, with transformers 4.x.
OLD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "is_llama_config": True,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}


def read(config: dict[str, Any]) -> ModelConfig:
    return family_of(config, "m").read(config, "bfloat16", "m")


def described(config: dict[str, Any]) -> ModelConfig:
    """Without the copy of the source's config."""
    return ModelConfig(**{**vars(read(config)), "pretrained_config": {}})


def test_both_layouts_say_the_same() -> None:
    new = LlamaConfig(**deepcopy({k: v for k, v in OLD.items() if k != "is_llama_config"})).to_dict()
    assert "rope_parameters" in new
    assert "rope_theta" not in new
    assert described(new) == described(OLD)
    model = read(OLD)
    assert (model.rotary_base, model.rotary_dim, model.head_size) == (500000.0, 64, 64)
    assert model.rotary_scaling == {
        "type": "llama3",
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, None),
        ({}, None),
        ({"type": "default"}, None),
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0}),
        ({"type": "dynamic", "rope_type": "dynamic", "factor": 4}, {"type": "dynamic", "factor": 4}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": None},
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling_is_read_under_both_names(scaling: Any, expected: Any) -> None:
    plain = {k: v for k, v in OLD.items() if k not in ("rope_scaling", "rope_theta")}
    old = plain | {"rope_scaling": scaling, "rope_theta": 20000.0}
    new = plain | {"rope_parameters": {**(scaling or {}), "rope_theta": 20000.0}}
    assert read(old).rotary_scaling == read(new).rotary_scaling == expected
    assert read(old).rotary_base == read(new).rotary_base == 20000.0


@pytest.mark.parametrize("name", FAMILIES)
def test_defaults_are_transformers(name: str) -> None:
    made = CONFIG_MAPPING[name]
    config = made().to_dict() | {"model_type": name, "architectures": None}
    for key in config:
        without = {k: v for k, v in deepcopy(config).items() if k != key}
        with contextlib.suppress(SourceError):  # some must be there
            ours = described(without)
            theirs = made(**{k: v for k, v in without.items() if k != "model_type"}).to_dict()
            assert ours == described(theirs | {"model_type": name}), key


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"sliding_window": 4096}, "sliding_window"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"hidden_act": "mish"}, "mish"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"model_type": "llama5"}, "nearest supported: llama"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "2048"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"num_key_value_heads": 5}, "cannot share"),
        ({"head_dim": 63}, "63"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_scaling": [1]}, "rope"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": ["linear"], "factor": 2.0}}, "linear"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}, "mrope_section"),
        ({"rope_scaling": {**OLD["rope_scaling"], "high_freq_factor": 1.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling and rope_parameters contradict"),
    ],
)
def test_what_could_change_the_model_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(SourceError, match=word):
        read(OLD | change)


def test_phi3_has_an_original_length_that_goes_before_the_one_of_its_rope() -> None:
    factors = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    config = {"model_type": "phi3", "vocab_size": 10, "hidden_size": 64, "intermediate_size": 64}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    for more in ({}, {"original_max_position_embeddings": 64}):
        config["rope_scaling"] = {"type": "longrope", **factors, **more}
        expected = Phi3Config(**deepcopy(config)).rope_parameters["original_max_position_embeddings"]
        scaling = read(config).rotary_scaling
        assert scaling is not None
        assert scaling["original_max_position_embeddings"] == expected == 4096


def test_an_unknown_setting_that_is_null_sets_nothing() -> None:
    assert described(OLD | {"sliding_window": None}) == described(OLD)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
ROPE = st.dictionaries(st.sampled_from(["type", "rope_type", "factor", "rope_theta", "low_freq_factor"]), JSON)


@given(st.sampled_from(sorted(OLD.keys() - HARMLESS)), JSON | ROPE)
def test_any_value_is_read_or_refused(key: str, value: Any) -> None:
    with contextlib.suppress(SourceError):
        read(OLD | {key: value})


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_gguf_names_every_module_that_the_family_reads(family: Family) -> None:
    if family.gguf is None:
        return
    named = {*family.modules, *family.layer_modules}
    read = set()
    for module in named:
        parts = family.modules.get(module, family.layer_modules.get(module))
        assert parts is not None
        assert not callable(parts)
        read |= {
            part if isinstance(part, str) else part.module
            for part in ([parts] if isinstance(parts, str | Part) else parts)
        }
    assert sorted(family.gguf.tensors.values()) == sorted(read)


def test_names_of_one_setting_must_not_contradict_each_other() -> None:
    gpt2 = {"model_type": "gpt2", "vocab_size": 10, "n_embd": 8, "n_head": 2, "n_layer": 1}
    assert read(gpt2 | {"hidden_size": 8}).hidden_size == 8
    with pytest.raises(SourceError, match="n_embd = 8 and hidden_size = 16 contradict"):
        read(gpt2 | {"hidden_size": 16})


@pytest.mark.parametrize(
    ("name", "words"),
    [("qwen4", "qwen2, qwen3"), ("gemma4", "gemma"), ("mamba2", "lists all"), (None, "lists all"), ([1], "lists all")],
)
def test_an_unknown_family_is_refused_with_its_neighbours(name: Any, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        read({"model_type": name})


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"model_type": "falcon", "alibi": True}, "alibi"),
        ({"model_type": "mpt", "attn_config": {"alibi": False}}, "attn_config.*alibi"),
        ({"model_type": "mpt", "attn_config": {"rope": True}}, "attn_config.*rope"),
        ({"model_type": "olmoe", "clip_qkv": 2.0, "num_experts": 4}, "clip_qkv"),
        (
            {"model_type": "mixtral", "num_key_value_heads": 1, "num_local_experts": 4, "mlp_only_layers": [0]},
            "mlp_only_layers",
        ),
        ({"model_type": "olmoe", "num_experts": 4, "decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"model_type": "gemma", "hidden_act": "silu"}, "hidden_act = 'silu'"),
        ({"model_type": "gemma", "hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 500.0}}, "settings of each layer type"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm"),
        ({"model_type": "phi", "partial_rotary_factor": 2.0}, "128 of 64"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "no sliding_window"),
        ({"model_type": "mistral", "rope_scaling": {"type": "longrope", "short_factor": [1]}}, "lacks long_factor"),
        ({"model_type": "gptj", "tie_word_embeddings": True}, "a head that is tied"),
    ],
)
def test_what_a_family_cannot_do_is_refused_by_name(config: dict[str, Any], word: str) -> None:
    least = {"vocab_size": 10, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    with pytest.raises(SourceError, match=word):
        read(least | {"intermediate_size": 64} | config)
