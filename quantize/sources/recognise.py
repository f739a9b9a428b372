"""What a folder is when it is no model that convert reads: told by the names of its files, and by its config.

The names come from a folder or from a hub's listing, so that both are refused with the same sentence, and a hub's
before its files are fetched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precast.quantize.families import FAMILIES

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
UNFINISHED = ("*.incomplete", "*.part", "*.aria2", "*.crdownload")
OTHER_FORMATS = {
    "*.h5": "TensorFlow",
    "*saved_model.pb": "TensorFlow",
    "*.msgpack": "Flax",
    "*.onnx": "ONNX",
    "*openvino_model.xml": "OpenVINO",
}

_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.safetensors\Z")

# Ends of the names that quantizers give to what they add to a linear's tensors.
QUANTIZED_TENSORS = {
    "GPTQ or AWQ": (".qweight", ".qzeros", ".g_idx"),
    "bitsandbytes": (".absmax", ".quant_map", ".SCB", ".weight_format"),
    "FP8": (".weight_scale_inv", ".weight_scale", ".input_scale", ".k_scale", ".v_scale"),
    "compressed-tensors": (".weight_packed", ".weight_shape"),
    "MXFP4": ("_blocks", "_scales"),
}


def listed(folder: Path) -> set[str]:
    """The files that tell what a folder is, as paths in it: its own, those one folder below, and those that
    huggingface_hub has not finished."""
    unfinished = folder.glob(".cache/huggingface/download/**/*.incomplete")
    found = (*folder.iterdir(), *folder.glob("*/*"), *unfinished)
    return {path.relative_to(folder).as_posix() for path in found if path.exists() and not path.is_dir()}


def why_not(where: str, names: Collection[str]) -> str | None:
    """Why a folder with these files (paths in it) is no model that can be converted; None: it may be one."""
    top = {name for name in names if "/" not in name}
    if not names:
        return f"{where} is empty: it has no config.json and no weights"
    if "model_index.json" in top and "config.json" not in top:
        return f"{where} is a diffusers pipeline, which makes pictures or sound; precast compiles language models"
    if SINGLE not in top and INDEX not in top:
        return _without_weights(where, names, top)
    if "config.json" not in top:
        return f"{where} has no config.json: not a Hugging Face model folder"
    return None


def _without_weights(where: str, names: Collection[str], top: set[str]) -> str:
    if "adapter_config.json" in top:
        return (
            f"{where} holds an adapter (LoRA), not a model; merge it into the model that it was trained on, with "
            "peft's merge_and_unload and save_pretrained, and give the folder that this writes"
        )
    if found := _matching(names, UNFINISHED):
        return f"{where} holds {found[0]}, of a download that is not complete; fetch the model again"
    if found := sorted(name for name in top if _SHARD.match(name)):
        return f"{where} holds {found[0]} and lacks {INDEX}, which says what is in it; fetch that too"
    if "config.json" not in top and (found := _matching(top, ("*.gguf",))):
        return f"{where} has no config.json, but GGUF files; give one of them, like {where}/{found[0]}"
    if found := _matching(top, ("consolidated*.safetensors",)):
        return f"{where} holds weights in Mistral's own format ({found[0]}); give the model in that of transformers"
    if found := _matching(top, PICKLES):
        return (
            f"{where} holds its weights as pickles ({found[0]}), which can run code when they are read; precast reads "
            "safetensors only: save the model again with transformers, "
            "AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW), where you trust it"
        )
    for pattern, framework in OTHER_FORMATS.items():
        if found := _matching(names, (pattern,)):
            return f"{where} holds its weights for {framework} ({found[0]}); precast reads safetensors: fetch those"
    if "config.json" not in top:
        return f"{where} has no config.json: not a Hugging Face model folder"
    return f"{where} has neither {SINGLE} nor {INDEX}"


def _matching(names: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def why_not_config(where: str, config: dict[str, Any]) -> str | None:
    """Why a Hugging Face config is of no model that can be converted, whatever its family; None: it may be one."""
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        return (
            f"{where} is already quantized ({method}); precast converts unquantized models so far: give the model that "
            "it was made of"
        )
    if isinstance(text := config.get("text_config"), dict):
        kind, inner = config.get("model_type"), text.get("model_type")
        told = f"save its text part ({inner}) as a model of its own"
        if inner not in FAMILIES:
            told = f"its text part ({inner}) is none that is supported either"
        return f"{where} is a model of text and of something else ({kind}); precast compiles text models: {told}"
    return None


def quantizer_of(tensors: Iterable[str]) -> tuple[str, str] | None:
    """What quantized a model that has these tensors, and the tensor that tells so; None: nothing."""
    for tensor in tensors:
        for quantizer, ends in QUANTIZED_TENSORS.items():
            if tensor.endswith(ends):
                return quantizer, tensor
    return None
