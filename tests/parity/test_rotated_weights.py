"""The rotation is exact: transformers gives the original's logits with the rotated weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from precast.builder.weights import Checkpoint
from precast.quantize import ConvertOptions, convert
from tests.parity.models import MODELS
from tests.tiny import distance, logits_of, random_tokens, tiny_llama


def as_transformers(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """A float32 Llama with the checkpoint's weights; gains of folded norms are one."""
    c = checkpoint.config
    config = LlamaConfig(**{**c.pretrained_config, "tie_word_embeddings": c.tie_word_embeddings})
    model = LlamaForCausalLM(config).float().eval()
    query, key = c.num_attention_heads * c.head_size, c.num_key_value_heads * c.head_size

    def load(parameter: torch.nn.Parameter, value: np.ndarray) -> None:  # type: ignore[type-arg]
        parameter.data.copy_(torch.from_numpy(np.array(value, np.float32)))

    def linear(module: torch.nn.Linear, name: str, begin: int = 0, end: int | None = None) -> None:
        load(module.weight, checkpoint.tensor(name + ".weight")[begin:end])
        if module.bias is not None:
            load(module.bias, checkpoint.tensor(name + ".bias")[begin:end])

    load(model.model.embed_tokens.weight, checkpoint.tensor("transformer.vocab_embedding.weight"))
    linear(model.lm_head, "lm_head")
    for norm in (m for name, m in model.named_modules() if name.endswith("norm")):
        norm.weight.data.fill_(1)
    for i, layer in enumerate(model.model.layers):
        prefix = f"transformer.layers.{i}."
        linear(layer.self_attn.q_proj, prefix + "attention.qkv", 0, query)
        linear(layer.self_attn.k_proj, prefix + "attention.qkv", query, query + key)
        linear(layer.self_attn.v_proj, prefix + "attention.qkv", query + key)
        linear(layer.self_attn.o_proj, prefix + "attention.dense")
        linear(layer.mlp.gate_proj, prefix + "mlp.fc")
        linear(layer.mlp.up_proj, prefix + "mlp.gate")
        linear(layer.mlp.down_proj, prefix + "mlp.proj")
    return model


@pytest.mark.parametrize("name", ["plain", "tied", "biases", "head64_ratio3", "head96_ratio4", "head128_ratio7"])
def test_transformers_gives_the_same_logits_with_rotated_weights(name: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", **MODELS[name])
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions(rotate=True))
    checkpoint = Checkpoint(tmp_path / "ckpt")
    original = model.model.embed_tokens.weight.detach().numpy()
    assert not np.allclose(checkpoint.tensor("transformer.vocab_embedding.weight"), original, atol=0.01)
    tokens = random_tokens(200)
    assert distance(logits_of(as_transformers(checkpoint), tokens), logits_of(model, tokens)) < 1e-4
