"""Writes a random Llama as bf16 shards with an index, a block of rows at a time: a model of any size on little memory.

usage: python tests/perf/write_random_llama.py FOLDER [--layers 32] [--hidden 4096] [--shard-gigabytes 5]

The defaults are Llama 3.1 8B's shape: 8.03 billion parameters, 16 GB. It has no tokenizer.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precast.safetensors_file import SafetensorsWriter

BLOCK_ELEMENTS = 1 << 22

Shape = tuple[int, ...]


def shapes(layers: int, hidden: int, vocab: int = 128256) -> dict[str, Shape]:
    """Name → shape of every tensor: heads of 128, one key/value head for four, MLPs of 3.5 · hidden, an untied head."""
    wide, kv = 7 * hidden // 2, hidden // 4
    out: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        for name, rows, columns in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", wide, hidden),
            ("mlp.up_proj", wide, hidden),
            ("mlp.down_proj", hidden, wide),
        ):
            out[f"{layer}{name}.weight"] = (rows, columns)
        out |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
    return out | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def blocks(shape: Shape, rng: np.random.Generator) -> Iterator[npt.NDArray[ml_dtypes.bfloat16]]:
    """A matrix of N(0, 0.02²), or a vector of ones, in blocks of rows."""
    if len(shape) == 1:
        yield np.ones(shape, ml_dtypes.bfloat16)
        return
    step = max(1, BLOCK_ELEMENTS // shape[1])
    for begin in range(0, shape[0], step):
        rows = min(step, shape[0] - begin)
        yield (rng.standard_normal((rows, shape[1]), np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--shard-gigabytes", type=float, default=5)
    options = parser.parse_args()
    tensors = shapes(options.layers, options.hidden)
    shards: list[dict[str, Shape]] = [{}]
    for name, shape in tensors.items():
        if sum(2 * math.prod(s) for s in shards[-1].values()) + 2 * math.prod(shape) > options.shard_gigabytes * 1e9:
            shards.append({})
        shards[-1][name] = shape
    options.folder.mkdir(parents=True)
    rng, weight_map = np.random.default_rng(0), {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        writer = SafetensorsWriter(options.folder / file, {name: ("BF16", shape) for name, shape in shard.items()})
        for name, shape in shard.items():
            writer.add_blocks(name, blocks(shape, rng))
        writer.close()
        weight_map |= dict.fromkeys(shard, file)
    size = sum(2 * math.prod(shape) for shape in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (options.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tensors["lm_head.weight"][0],
        "hidden_size": options.hidden,
        "intermediate_size": 7 * options.hidden // 2,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.hidden // 128,
        "num_key_value_heads": options.hidden // 512,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
    }
    (options.folder / "config.json").write_text(json.dumps(config))
    print(f"{size / 2e9:.2f} billion parameters, {size / 1e9:.1f} GB in {len(shards)} shards")


if __name__ == "__main__":
    main()
