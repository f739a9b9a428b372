"""Tiny random models, saved as transformers saves them, with attention that is peaked and logits that are large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 320


def tiny_llama(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    """Saves a two-layer Llama into `folder`; → the model in eval mode.

    q and k projections are scaled up so that attention is peaked: with near-uniform attention, dropping rope or a head
    would hardly move the logits. `changes` override the config.
    """
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 40,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(10)
            elif name.endswith(".bias"):
                weight.normal_(0, 0.2)
            elif "norm" in name:
                weight.copy_(torch.rand_like(weight) + 0.5)
    model = model.to(dtype).eval()
    model.save_pretrained(folder)
    return model


def tiny_chat_model(folder: Path, **changes: Any) -> LlamaForCausalLM:
    """As `tiny_llama`, with a byte-level tokenizer of VOCAB tokens, a chat template and a generation config."""
    model = tiny_llama(folder, **changes)
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog, and the dog sleeps on in the sun"] * 2,
        trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rust, unk_token="<unk>", bos_token="<s>", eos_token="</s>", extra_special_tokens=special[3:]
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return model


def logits_of(model: LlamaForCausalLM, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """transformers' logits f32 [len(tokens), vocab_size]."""
    with torch.no_grad():
        logits: np.ndarray[Any, np.dtype[np.float32]] = model(torch.tensor([tokens])).logits[0].float().numpy()
    return logits


def random_tokens(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """`count` token ids."""
    return [int(t) for t in np.random.default_rng(seed).integers(3, vocab, count)]


def distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """max|a − b| / std(b): the error of logits a against b."""
    return float(np.abs(a.astype(np.float64) - b).max() / b.astype(np.float64).std())
