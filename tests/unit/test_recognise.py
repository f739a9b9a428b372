"""Folders that are no models to convert: each is told what it is, in one sentence, before a tensor is read."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from precast.errors import SourceError
from precast.quantize import convert
from precast.safetensors_file import SafetensorsFile
from tests.tiny import tiny_chat_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 135\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model with tokenizer and template."""
    folder = tmp_path_factory.mktemp("saved") / "hf"
    tiny_chat_model(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "hf"))


@pytest.fixture(autouse=True)
def no_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("a tensor was read before the model was refused")

    monkeypatch.setattr(SafetensorsFile, "tensor", read)


def refused(folder: Path, *words: str) -> None:
    """convert refuses it in one sentence that has the words, and leaves nothing behind."""
    out = folder.parent / "out"
    with pytest.raises(SourceError) as caught:
        convert(folder, out)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ],
)
def test_lfs_pointers(name: str, folder: Path) -> None:
    assert (folder / name).exists()
    (folder / name).write_bytes(POINTER)
    refused(folder, name, "Git LFS pointer", "git lfs pull")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "merges.txt", "special_tokens_map.json"])
def test_lfs_pointers_of_older_tokenizers(name: str, folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    if name in ("vocab.json", "merges.txt"):
        (folder / "tokenizer_config.json").unlink()
        (folder / "vocab.json").write_text('{"a": 0}')
    (folder / name).write_bytes(POINTER)
    refused(folder, name, "Git LFS pointer", "git lfs pull")


def test_a_pointer_in_place_of_a_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(POINTER)
    with pytest.raises(SourceError, match="git lfs pull"):
        convert(tmp_path / "model.gguf", tmp_path / "out")


def only(folder: Path, *names: str) -> None:
    """Replaces the weights by other files."""
    (folder / "model.safetensors").unlink()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def test_a_family_that_is_not_here_is_told_before_its_weights_are(folder: Path) -> None:
    only(folder, "pytorch_model.bin")
    edit_config(folder, model_type="t5")
    refused(folder, "model_type 't5' is not supported")


WEIGHTS = {
    "pickle": (["pytorch_model.bin"], ["pickles", "pytorch_model.bin", "save_pretrained"]),
    "sharded pickles": (["pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"], ["pickles"]),
    "original llama": (["consolidated.00.pth", "params.json"], ["pickles", "consolidated.00.pth"]),
    "mistral": (["consolidated.safetensors", "params.json"], ["Mistral's own format"]),
    "tensorflow": (["tf_model.h5"], ["TensorFlow", "tf_model.h5"]),
    "flax": (["flax_model.msgpack"], ["Flax", "flax_model.msgpack"]),
    "onnx": (["onnx/model.onnx"], ["ONNX", "onnx/model.onnx"]),
    "openvino": (["openvino_model.xml", "openvino_model.bin_"], ["OpenVINO"]),
    "unfinished": (["model.safetensors.incomplete"], ["not complete", "model.safetensors.incomplete"]),
    "unfinished by hf download": ([".cache/huggingface/download/x.ab12.incomplete"], ["not complete"]),
    "shards without an index": (["model-00001-of-00002.safetensors"], ["lacks model.safetensors.index.json"]),
    "an adapter beside a config": (["adapter_config.json", "adapter_model.safetensors"], ["adapter", "merge"]),
    "nothing": ([], ["neither model.safetensors nor model.safetensors.index.json"]),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_in_another_form(case: str, folder: Path) -> None:
    names, words = WEIGHTS[case]
    only(folder, *names)
    refused(folder, *words)


FOLDERS = {
    "empty": ([], ["is empty", "no config.json"]),
    "adapter": (["adapter_config.json", "adapter_model.safetensors"], ["adapter (LoRA)", "merge_and_unload"]),
    "diffusers": (["model_index.json", "unet/config.json", "unet/model.safetensors"], ["diffusers pipeline"]),
    "GGUF files": (["a.Q4_K_M.gguf", "b.gguf", "README.md"], ["GGUF files", "a.Q4_K_M.gguf"]),
    "weights alone": (["model.safetensors"], ["no config.json"]),
    "pictures": (["cat.png"], ["no config.json"]),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_of_something_else(case: str, tmp_path: Path) -> None:
    names, words = FOLDERS[case]
    folder = tmp_path / "x"
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    refused(folder, *words)


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4"])
def test_a_quantized_model_that_says_so(method: str, folder: Path) -> None:
    edit_config(folder, quantization_config={"quant_method": method, "bits": 4})
    refused(folder, f"already quantized ({method})", "give the model that it was made of")


LEFT = "model.layers.0.self_attn.q_proj."


def add(**tensors: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights.update({LEFT + name: tensor for name, tensor in tensors.items()})


QUANTIZED = {
    "GPTQ": (add(qweight=torch.zeros(12, 160, dtype=torch.int32), g_idx=torch.zeros(96, dtype=torch.int32)), "GPTQ"),
    "bitsandbytes": (add(**{"weight.absmax": torch.zeros(9), "weight.quant_map": torch.zeros(16)}), "bitsandbytes"),
    "bitsandbytes int8": (add(SCB=torch.zeros(160)), "bitsandbytes"),
    "FP8 blocks": (add(weight_scale_inv=torch.zeros(2, 1)), "FP8"),
    "FP8": (add(weight=torch.zeros(160, 96).to(torch.float8_e4m3fn), weight_scale=torch.tensor(1.0)), "FP8"),
    "compressed": (add(weight_packed=torch.zeros(160, 12, dtype=torch.int32)), "compressed-tensors"),
    "FP8 without scales": (add(weight=torch.zeros(160, 96).to(torch.float8_e4m3fn)), "F8_E4M3"),
}


@pytest.mark.parametrize("case", QUANTIZED)
def test_a_quantized_model_that_says_nothing(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, word = QUANTIZED[case]
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    refused(folder, LEFT, word)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("gemma3", "gemma3_text", ["gemma3", "save its text part (gemma3_text)"]),
        ("llava", "llama", ["llava", "save its text part (llama)"]),
        ("mllama", "mllama_text_model", ["mllama", "(mllama_text_model) is none that is supported"]),
    ],
)
def test_a_model_of_text_and_pictures(kind: str, text: str, words: list[str], folder: Path) -> None:
    edit_config(folder, model_type=kind, text_config={"model_type": text}, vision_config={"model_type": "siglip"})
    refused(folder, *words)


@pytest.fixture
def sharded(saved: Path, tmp_path: Path) -> Path:
    LlamaForCausalLM.from_pretrained(saved).save_pretrained(tmp_path / "hf", max_shard_size="200KB")
    return tmp_path / "hf"


def test_downloads_that_broke_off(sharded: Path) -> None:
    last = max(sharded.glob("*.safetensors"))
    data = last.read_bytes()
    last.unlink()
    refused(sharded, last.name, "the download is not complete")
    (header,) = struct.unpack("<Q", data[:8])
    for kept in (len(data) - 1, header + 9, header, 100, 9):
        last.write_bytes(data[:kept])
        refused(sharded, last.name)
    last.write_bytes(b"")
    refused(sharded, last.name, "0 bytes are too few")
