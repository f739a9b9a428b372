"""Faults of configs, weights and layouts that users of language model engines have reported, each kind as one test.

All through the whole path: a folder as transformers saves it, converted, built, and run against transformers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import Gemma2Config, Gemma2ForCausalLM

from precast.builder import BuildOptions, build
from precast.errors import BuildError, CheckpointError, SourceError
from precast.quantize import ConvertOptions, convert
from precast.quantize.sources.hf_folder import HfFolder
from tests.parity.models import TOLERANCE
from tests.steps import Sequence, Steps, make_engine
from tests.tiny import distance, logits_of, random_tokens, tiny_llama
from tests.tiny_families import TINY

TOKENS = random_tokens(150)


def engine_logits(hf: Path, folder: Path, **options: Any) -> Any:
    return Steps(make_engine(hf, folder, **options)).logits(TOKENS, (70,))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_tied_weights_untied_and_missing_is_an_error_that_names_the_head(tmp_path: Path) -> None:
    """A head that was not in the file was silently tied to the embedding."""
    tiny_llama(tmp_path / "hf", tie_word_embeddings=True)
    edit(tmp_path / "hf", lambda c: c.update(tie_word_embeddings=False))
    with pytest.raises(SourceError, match=r"lacks the tensor lm_head\.weight"):
        convert(tmp_path / "hf", tmp_path / "ckpt")


@pytest.mark.parametrize("rotate", [False, True])
def test_tied_weights_a_quantized_tied_head_is_the_embedding(rotate: bool, tmp_path: Path) -> None:
    """A quantized head that is tied stayed uninitialised."""
    model = tiny_llama(tmp_path / "hf", tie_word_embeddings=True)
    logits = engine_logits(tmp_path / "hf", tmp_path, convert={"quant": "int8", "rotate": rotate})
    expected = logits_of(model, TOKENS)
    assert np.sqrt(np.mean((logits - expected) ** 2)) < 0.1 * expected.std()


ROPES = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.4, "beta_fast": 16.0},
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_settings_under_old_and_new_names_are_one_model(kind: str, tmp_path: Path) -> None:
    """`KeyError: type`; Llama 3's scaling read as none; YaRN's mscale left out."""
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}
    if kind != "linear":
        rope["original_max_position_embeddings"] = 64
    model = tiny_llama(tmp_path / "hf", rope_parameters=dict(rope))
    new = engine_logits(tmp_path / "hf", tmp_path)
    assert distance(new, logits_of(model, TOKENS)) < TOLERANCE
    for name in ("rope_type", "type"):

        def old(config: dict[str, Any], name: str = name) -> None:
            config.pop("rope_parameters", None)
            settings = {key: value for key, value in rope.items() if key not in ("rope_theta", "rope_type")}
            config.update(rope_theta=rope["rope_theta"], rope_scaling={name: kind, **settings})

        edit(tmp_path / "hf", old)
        shutil.rmtree(tmp_path / "engine")
        assert (engine_logits(tmp_path / "hf", tmp_path) == new).all()


def test_longrope_a_sequence_keeps_its_factors_across_chunks(tmp_path: Path) -> None:
    """A prompt that grew beyond the original length changed its factors half-way, and mixed both in one cache."""
    TINY["phi3"].save(tmp_path / "hf")
    steps = Steps(make_engine(tmp_path / "hf", tmp_path))
    whole = steps.logits(TOKENS)
    for chunks in ([64], [63, 1], [10, 60], [20] * 7):
        assert (steps.logits(TOKENS, chunks) == whole).all()
    sequence = Sequence()
    assert (steps.step([(sequence, TOKENS[:50])]) == whole[:50]).all()  # alone, it fits the original length


def test_attention_variants_head_size_100_and_six_query_heads_for_one(tmp_path: Path) -> None:
    """Head sizes that are no multiple of a vector, and ratios of heads that are no power of two."""
    shape = {"hidden_size": 120, "head_dim": 100, "num_attention_heads": 6, "num_key_value_heads": 1}
    model = tiny_llama(tmp_path / "hf", **shape)
    assert distance(engine_logits(tmp_path / "hf", tmp_path), logits_of(model, TOKENS)) < TOLERANCE


def gemma2(folder: Path, **changes: Any) -> Any:
    model = TINY["gemma2"].save(folder)
    config = Gemma2Config(**{**model.config.to_dict(), **changes})
    other = Gemma2ForCausalLM._from_config(config, attn_implementation="eager").eval()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        {"layer_types": ["sliding_attention"] * 4},
        {"layer_types": ["full_attention"] * 4},
    ],
    ids=["caps", "window on all layers", "window on none"],
)
def test_attention_variants_caps_and_windows_are_felt(changes: dict[str, Any], tmp_path: Path) -> None:
    """Soft caps were dropped, and the window was laid on all layers: the engine is the model, and not its neighbour."""
    neighbour = gemma2(tmp_path / "hf", **changes)
    logits = engine_logits(tmp_path / "hf", tmp_path)
    model = gemma2(tmp_path / "hf")
    assert distance(logits, logits_of(model, TOKENS)) < TOLERANCE
    assert distance(logits, logits_of(neighbour, TOKENS)) > 100 * TOLERANCE


def test_config_a_key_that_nobody_knows_is_refused_by_its_name(tmp_path: Path) -> None:
    """A setting that changes the maths was not known, and left out."""
    tiny_llama(tmp_path / "hf")
    edit(tmp_path / "hf", lambda c: c.update(attn_temperature_scale=0.1))
    with pytest.raises(SourceError, match="unknown settings that could change the model: attn_temperature_scale"):
        convert(tmp_path / "hf", tmp_path / "ckpt")


Weights = dict[str, Any]
DOWN = "model.layers.1.mlp.down_proj.weight"
BREAKS: dict[str, tuple[Callable[[Weights], Any], str]] = {
    "missing": (lambda w: w.pop(DOWN), f"lacks the tensor {DOWN}"),
    "unread": (lambda w: w.update({"model.x": np.zeros(3, np.float32)}), "does not use: the tensor model.x"),
    "misshapen": (lambda w: w.update({"lm_head.weight": np.zeros((3, 96), np.float32)}), "lm_head.weight is [3, 96]"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_layout_is_refused_before_a_tensor_is_read(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad header or a missing tensor was found minutes later, when its turn came."""
    tiny_llama(tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    BREAKS[case][0](weights)
    save_file(weights, tmp_path / "hf" / "model.safetensors")

    def read(*_: Any) -> None:
        raise AssertionError("a tensor was read first")

    monkeypatch.setattr(HfFolder, "rows", read)
    with pytest.raises(SourceError) as caught:
        convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions("int8"))
    assert BREAKS[case][1] in str(caught.value)
    assert not (tmp_path / "ckpt").exists()


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    tiny_llama(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions("int8"))
    return tmp_path / "ckpt"


def test_scale_keys_a_missing_scale_is_named_before_anything_is_packed(quantized: Path, tmp_path: Path) -> None:
    """Scales that were not there were found at the end of a build, or taken as one."""
    name = "transformer.layers.1.mlp.proj.per_channel_scale"
    weights = load_file(quantized / "rank0.safetensors")
    del weights[name]
    save_file(weights, quantized / "rank0.safetensors")
    stages: list[str] = []
    with pytest.raises(CheckpointError, match=name):
        build(quantized, tmp_path / "engine", progress=lambda stage, *_: stages.append(stage))
    assert not stages


def test_build_memory_is_estimated_and_refused_with_the_numbers(quantized: Path, tmp_path: Path) -> None:
    """A build that was going to run out of memory ended as `Killed`, without a word."""
    stages: list[str] = []
    with pytest.raises(BuildError, match=r"GB|MB"):
        build(
            quantized,
            tmp_path / "engine",
            BuildOptions(),
            progress=lambda stage, *_: stages.append(stage),
            available_memory=1 << 20,
        )
    assert not stages
    assert not (tmp_path / "engine").exists()


def test_quantized_garbage_is_seen_in_the_report(tmp_path: Path) -> None:
    """A weight that int8 cannot hold spoils the answers, and nothing says so."""
    tiny_llama(tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    weight = weights["model.layers.1.mlp.down_proj.weight"]
    weight[:, 0] = 30 * weight.std()  # each row's scale is its first column's, and leaves the others few steps
    save_file(weights, tmp_path / "hf" / "model.safetensors")
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions("int8", rotate=False))
    report = json.loads((tmp_path / "ckpt" / "report.json").read_text())
    assert report["worst"][0] == "transformer.layers.1.mlp.proj"


def test_large_activations_do_not_overflow(tmp_path: Path) -> None:
    """Sums of half precision overflowed to NaN where activations were large."""
    model = tiny_llama(tmp_path / "hf", dtype=torch.bfloat16)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1e4)
        model.model.layers[0].mlp.up_proj.weight.mul_(1e3)
    model.save_pretrained(tmp_path / "hf")
    for quant in ("none", "int8"):
        logits = engine_logits(tmp_path / "hf", tmp_path, convert={"quant": quant})
        assert np.isfinite(logits).all()
        expected = logits_of(model.float(), TOKENS)
        assert np.sqrt(np.mean((logits - expected) ** 2)) < 0.2 * expected.std()
        shutil.rmtree(tmp_path / "engine")
