"""Hugging Face folders: what is read, and what is refused before a tensor is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from precast.builder.weights import Checkpoint
from precast.errors import PrecastError, SourceError
from precast.quantize import ConvertOptions, convert
from precast.quantize.describe import describe_source
from tests.tiny import tiny_llama

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in one file (untied)."""
    folder = tmp_path_factory.mktemp("saved") / "hf"
    tiny_llama(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "hf"))


@pytest.fixture
def sharded(saved: Path, tmp_path: Path) -> Path:
    """The same model in several files."""
    LlamaForCausalLM.from_pretrained(saved).save_pretrained(tmp_path / "sharded", max_shard_size="200KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    return tmp_path / "sharded"


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / "model.safetensors")


def refused(folder: Path, word: str) -> None:
    """convert refuses it with one sentence that holds `word`, and leaves nothing behind."""
    out = folder.parent / "ckpt"
    with pytest.raises(SourceError, match=word):
        convert(folder, out, ConvertOptions())
    assert not [path for path in folder.parent.iterdir() if "ckpt" in path.name]


def test_shards_give_what_a_single_file_gives(saved: Path, sharded: Path, tmp_path: Path) -> None:
    convert(saved, tmp_path / "a", ConvertOptions("int8"))
    convert(sharded, tmp_path / "b", ConvertOptions("int8"))
    assert (tmp_path / "a/rank0.safetensors").read_bytes() == (tmp_path / "b/rank0.safetensors").read_bytes()


def test_description(saved: Path) -> None:
    found = describe_source(saved)
    assert found["kind"] == "huggingface"
    assert found["parameters"] == LlamaForCausalLM.from_pretrained(saved).num_parameters()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_weights_keep_their_dtype(dtype: str, folder: Path, tmp_path: Path) -> None:
    edit_weights(folder, lambda w: w.update({k: v.to(getattr(torch, dtype)) for k, v in w.items()}))
    convert(folder, tmp_path / "ckpt", ConvertOptions())
    checkpoint = Checkpoint(tmp_path / "ckpt")
    assert checkpoint.config.dtype == ("float32" if dtype == "float32" else "bfloat16")
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    expected = embedding if dtype == "float32" else embedding.to(torch.bfloat16)
    stored = np.asarray(checkpoint.tensor("transformer.vocab_embedding.weight"), np.float32)
    assert (stored == expected.float().numpy()).all()


def test_a_float32_buffer_does_not_make_a_model_float32(folder: Path, tmp_path: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights.update({name: w.bfloat16() for name, w in weights.items()})
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(20)

    edit_weights(folder, change)
    convert(folder, tmp_path / "ckpt", ConvertOptions())
    assert Checkpoint(tmp_path / "ckpt").config.dtype == "bfloat16"


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/x.safetensors", "..", "model.bin", 3, None])
def test_an_index_that_leaves_the_folder_is_refused(name: Any, sharded: Path) -> None:
    (sharded.parent / "outside.safetensors").write_bytes(next(sharded.glob("*.safetensors")).read_bytes())
    edit(sharded / INDEX, lambda v: v["weight_map"].update({"lm_head.weight": name}))
    refused(sharded, "not a safetensors file of this folder")


def test_an_index_that_lies_is_refused(sharded: Path) -> None:
    original = (sharded / INDEX).read_text()
    edit(sharded / INDEX, lambda v: v["weight_map"].pop("model.layers.0.mlp.up_proj.weight"))
    refused(sharded, r"has the tensor model\.layers\.0\.mlp\.up_proj\.weight")
    first, *_, last = sorted(path.name for path in sharded.glob("*.safetensors"))
    (sharded / INDEX).write_text(original)
    edit(sharded / INDEX, lambda v: v["weight_map"].update({"extra": first}))
    refused(sharded, "lacks the tensor extra")
    for broken in ("[]", "{}", '{"weight_map": []}', "not json"):
        (sharded / INDEX).write_text(broken)
        refused(sharded, r"index\.json")
    (sharded / INDEX).write_text(original)
    (sharded / last).unlink()
    refused(sharded, "download is not complete")
    (sharded / last).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(sharded, "git lfs pull")


def test_a_truncated_shard_is_found_before_tensors_are_read(sharded: Path) -> None:
    last = max(sharded.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1])
    refused(sharded, "truncated")


def test_pickles_are_recognised(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "pickles")
    (folder / "pytorch_model.bin").unlink()
    refused(folder, "neither model.safetensors nor")


def test_missing_unused_and_misshapen_tensors_are_named(folder: Path) -> None:
    original = (folder / "model.safetensors").read_bytes()
    for change, word in (
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), r"lacks the tensor model\.layers\.1\.mlp\.up_proj"),
        (lambda w: w.update({"model.layers.2.mlp.up_proj.weight": torch.ones(2)}), r"does not use.*layers\.2"),
        (lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(160)}), "does not use.*bias"),
        (lambda w: w.update({"model.norm.weight": torch.ones(97)}), r"model\.norm\.weight is \[97\]"),
        (lambda w: w.update({"model.norm.weight": torch.ones(96, 1)}), "asks for"),
        (lambda w: w.update({"model.norm.weight": torch.tensor(1.0)}), "asks for"),
        (lambda w: w.update({"model.layers.0.self_attn.k_proj.weight": torch.ones(79, 96)}), r"k_proj.*together"),
        (lambda w: w.update({"model.norm.weight": torch.ones(96, dtype=torch.int8)}), "I8"),
    ):
        edit_weights(folder, change)
        refused(folder, word)
        (folder / "model.safetensors").write_bytes(original)


@pytest.mark.parametrize("quant", ["none", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"])
def test_nan_and_infinity_are_named(folder: Path, quant: str, value: float, name: str) -> None:
    edit_weights(folder, lambda w: w[name].view(-1)[-1].fill_(value))
    with pytest.raises(SourceError, match=f"{name} holds NaN or infinity"):
        convert(folder, folder.parent / "ckpt", ConvertOptions(quant))
    assert not (folder.parent / "ckpt").exists()


def test_tied_and_untied_heads(folder: Path, tmp_path: Path) -> None:
    edit(folder / "config.json", lambda c: c.update({"tie_word_embeddings": True}))
    refused(folder, "lm_head.weight differs")
    edit_weights(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    convert(folder, tmp_path / "out", ConvertOptions())
    assert "lm_head.weight" not in Checkpoint(tmp_path / "out").config.pretrained_config
    edit_weights(folder, lambda w: w.pop("lm_head.weight"))
    convert(folder, tmp_path / "out2", ConvertOptions())
    edit(folder / "config.json", lambda c: c.update({"tie_word_embeddings": False}))
    refused(folder, r"lacks the tensor lm_head\.weight")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("config.json", "[]", "JSON object"),
        ("config.json", "{", "not JSON"),
        ("config.json", '{"format": "precast-checkpoint"}', "checkpoint already"),
        ("config.json", '{"quantization_config": {"quant_method": "fp8"}}', "already quantized .fp8"),
        ("config.json", '{"quantization_config": "x"}', "already quantized"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("tokenizer.model", "x", "not a sentencepiece model"),
        ("chat_template.jinja", "{% for %}", "chat template"),
        ("generation_config.json", "[", "not JSON"),
        ("tokenizer_config.json", "version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ],
)
def test_broken_files_beside_the_weights_are_refused_first(name: str, content: str, word: str, folder: Path) -> None:
    (folder / name).write_text(content)
    refused(folder, word)


def test_a_damaged_number_of_layers_costs_nothing(folder: Path) -> None:
    edit(folder / "config.json", lambda c: c.update({"num_hidden_layers": 2_000_000_000}))
    refused(folder, "2000000000 layers; at most 10000")


def test_other_things_are_not_models(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for path, word in (
        (tmp_path / "x.txt", "neither"),
        (tmp_path / "nothing", "does not exist"),
        (tmp_path / "empty", "no config.json"),
        (saved / "model.safetensors", "give the folder"),
    ):
        with pytest.raises(SourceError, match=word):
            convert(path, tmp_path / "ckpt", ConvertOptions())


def test_a_folder_with_other_files_is_never_replaced(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    convert(saved, out, ConvertOptions())  # an empty one is fine
    convert(saved, out, ConvertOptions())  # and so is a checkpoint
    for other in (tmp_path / "thesis", saved):
        other.mkdir(exist_ok=True)
        (other / "thesis.tex").write_text("five years")
        with pytest.raises(PrecastError, match="other files"):
            convert(saved, other, ConvertOptions())
        assert (other / "thesis.tex").read_text() == "five years"
        (other / "thesis.tex").unlink()
    (tmp_path / "file").write_text("x")
    with pytest.raises(PrecastError, match="not a folder"):
        convert(saved, tmp_path / "file", ConvertOptions())
