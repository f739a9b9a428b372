"""Writes the seeds of the fuzzers: tiny engines of families that together use every kernel and layout, and sections of
token bytes. `PRECAST_ISA=avx2 python -m tests.fuzz.make_seeds CORPUS`, again when the engine format changes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from precast.builder import BuildOptions, build
from precast.quantize import ConvertOptions, convert
from precast.quantize.families import FAMILIES
from precast.runtime.text import vocab
from tests.tiny_families import randomize
from tests.unit.test_tokenizer import KINDS

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 600,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
SOFTCAPS = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0}
NO_KEYS = dict.fromkeys(("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings"))
"""Of SIZES, that a family lacks."""

GPT2 = NO_KEYS | {"n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 96, "n_inner": 24}
BLOOM = NO_KEYS | {"n_head": 2, "n_layer": 1}

ENGINES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama_int8": ("llama", {"attention_bias": True}, "int8"),
    "llama_bf16": ("llama", {"dtype": "bfloat16"}, "none"),
    "qwen2_moe_int8": ("qwen2_moe", MOE | {"shared_expert_intermediate_size": 12}, "int8"),
    "qwen3_moe_f32": ("qwen3_moe", MOE | {"norm_topk_prob": True}, "none"),
    "gemma2_f32": ("gemma2", SOFTCAPS | {"sliding_window": 40, "num_hidden_layers": 2}, "none"),
    "bloom_int8": ("bloom", BLOOM, "int8"),
    "gpt2_f32": ("gpt2", GPT2, "none"),
    "olmo_clip_int8": ("olmo", {"clip_qkv": 1.0}, "int8"),
    "cohere_qk_norm_bf16": ("cohere", {"use_qk_norm": True, "dtype": "bfloat16"}, "none"),
}
"""Name → family, changes of its config (None: it has no such key), quantization."""

KV_DTYPES = {"bloom": "int8", "gemma2": "fp8", "gpt2": "float32"}
"""Of families; others have the default."""

MAX_SEQ_LEN = 512


def engine(family: str, changes: dict[str, Any], quant: str, folder: Path) -> bytes:
    """A random model's engine file."""
    sizes = {key: value for key, value in (SIZES | changes).items() if value is not None}
    config = transformers.CONFIG_MAPPING[family](**sizes)
    torch.manual_seed(0)
    model = getattr(transformers, FAMILIES[family].architecture)._from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            randomize(name, weight)
    model.to(getattr(torch, changes.get("dtype", "float32"))).save_pretrained(folder / "hf")
    convert(folder / "hf", folder / "checkpoint", ConvertOptions(quant=quant))
    longest = min(MAX_SEQ_LEN, changes.get("n_positions", MAX_SEQ_LEN))
    kv = KV_DTYPES.get(family, "auto")
    limits = BuildOptions(max_batch_size=4, max_num_tokens=80, max_seq_len=longest, kv_cache_dtype=kv)
    build(folder / "checkpoint", folder / "engine", limits)
    return (folder / "engine" / "rank0.engine").read_bytes()


def token_bytes(kind: str, folder: Path) -> bytes:
    """The section of a tokenizer."""
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    return vocab.section(folder, 700)


def main(corpus: Path) -> None:
    """Writes `corpus`/engine, engine_file and vocab_bytes."""
    for target in ("engine", "engine_file", "vocab_bytes"):
        (corpus / target).mkdir(parents=True, exist_ok=True)
    for name, what in ENGINES.items():
        with tempfile.TemporaryDirectory() as folder:
            data = engine(*what, Path(folder))
        (corpus / "engine" / name).write_bytes(data)
        if name == "llama_int8":
            (corpus / "engine_file" / name).write_bytes(data)
    for kind in ("byte level", "llama 2", "word piece"):
        with tempfile.TemporaryDirectory() as folder:
            (corpus / "vocab_bytes" / kind.replace(" ", "_")).write_bytes(token_bytes(kind, Path(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
