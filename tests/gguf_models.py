"""Writes GGUF files of tiny models, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from precast.quantize.sources.gguf_file import GGUF_FAMILIES, added_to

TEXTS = ["the quick brown fox ", "hello hello there ", "1234 5678 "]


def byte_level_fields(writer: GGUFWriter, size: int, pre: str) -> None:
    """A byte-level tokenizer of exactly `size` tokens: two control tokens, one user-defined, bytes, and merges."""
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|unk|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        TEXTS * 9, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet)
    )
    tokens = [rust.id_to_token(i) for i in range(rust.get_vocab_size())]
    tokens += [f"<unused{i}>" for i in range(size - len(tokens))]
    merges = json.loads(rust.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (size - 4) + [4])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")


def interleave(weight: np.ndarray[Any, Any], head_size: int) -> np.ndarray[Any, Any]:
    """Rows of q and k in GGUF's order: the halves of each head interleaved."""
    return weight.reshape(-1, 2, head_size // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_llama(path: Path, model: Any, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **extra: Any) -> None:
    """As `write_model`, of the architecture llama."""
    write_model(path, model, "llama", kind, **extra)


def write_model(
    path: Path, model: Any, architecture: str, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **extra: Any
) -> None:
    """Writes `model`, its matrices as `kind`. What quantization loses is put back into `model`.

    `extra`: more fields, by key.
    """
    c, family = model.config, GGUF_FAMILIES[architecture]
    head_size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    rope = c.rope_parameters
    writer.add_rope_dimension_count(int(head_size * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if rope.get("rope_type") == "longrope":
        _add_longrope(writer, c.max_position_embeddings, rope)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    byte_level_fields(writer, c.vocab_size, extra.pop("tokenizer.ggml.pre", "smollm"))
    for key, value in extra.items():
        writer.add_key_value(key, value, _value_type(value))
    assert family.gguf is not None
    stems = {module: stem for stem, module in family.gguf.tensors.items()}
    for name, parameter in model.named_parameters():
        module, _, suffix = name.rpartition(".")
        layer = module.split(".")[2] if ".layers." in module else ""
        pattern = module.replace(f".layers.{layer}.", ".layers.{i}.")
        stem, plus = stems[pattern].replace("{i}", layer), np.float32(added_to(family, pattern))
        array = parameter.detach().numpy() + plus
        permuted = stem.endswith(family.gguf.permuted or "-")
        stored = interleave(array, head_size) if permuted else array
        used = kind if array.ndim == 2 else GGMLQuantizationType.F32
        raw = quantize(stored, used)
        writer.add_tensor(f"{stem}.{suffix}", raw, raw_dtype=used)
        with torch.no_grad():
            back = dequantize(raw, used)
            parameter.copy_(torch.from_numpy((_deinterleave(back, head_size) if permuted else back) - plus))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_longrope(writer: GGUFWriter, most: int, rope: dict[str, Any]) -> None:
    original = rope["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(most / original) / math.log(original)))
    for kind in ("short", "long"):
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32))


def _deinterleave(weight: np.ndarray[Any, Any], head_size: int) -> np.ndarray[Any, Any]:
    return weight.reshape(-1, head_size // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _value_type(value: Any) -> GGUFValueType:
    kinds = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
    return kinds[type(value)]
