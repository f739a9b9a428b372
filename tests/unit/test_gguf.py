"""GGUF files: the same model as the Hugging Face folder, and nothing that a damaged file could do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from transformers import AutoTokenizer

from precast.builder.interpreter import Interpreter
from precast.builder.models.decoder import decoder
from precast.builder.weights import Checkpoint
from precast.checkpoint import tensor_shapes
from precast.errors import SourceError
from precast.quantize import ConvertOptions, convert
from precast.quantize.describe import describe_source
from precast.quantize.families import FAMILIES
from precast.quantize.sources.gguf_file import GgufSource, llama3_divisors
from precast.quantize.sources.gguf_reader import GgufFile
from precast.runtime.text import vocab
from precast.runtime.text.tokenizer import Tokenizer
from tests.gguf_models import write_llama, write_model
from tests.tiny import distance, logits_of, random_tokens, tiny_llama
from tests.tiny_families import TINY

SMALL = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "rms_norm_eps": 1e-5}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_logits_are_those_of_the_model_that_was_written(kind: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", attention_bias=kind == "F32", **SMALL)
    write_llama(tmp_path / "m.gguf", model, GGMLQuantizationType[kind])
    convert(tmp_path / "m.gguf", tmp_path / "ckpt", ConvertOptions(dtype="float32"))
    checkpoint = Checkpoint(tmp_path / "ckpt")
    assert checkpoint.config.norm_epsilon == 1e-5
    assert not checkpoint.config.tie_word_embeddings
    tokens = random_tokens(40)
    interpreter = Interpreter(decoder(checkpoint.config), checkpoint, 2048)
    assert distance(interpreter.run(tokens), logits_of(model, tokens)) < 1e-4


# GGUF says nothing of these: they are what every model of the family has.
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False, "tie_word_embeddings": False},
    "qwen3": {"attention_bias": False},
    "gemma2": {"query_pre_attn_scalar": 40},
    "phi3": {
        "rope_parameters": TINY["phi3"].config["rope_parameters"]
        | {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]}
    },
    "gemma3_text": {
        "query_pre_attn_scalar": 40,
        "final_logit_softcapping": None,
        "num_hidden_layers": 6,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}
FIELDS: dict[str, dict[str, Any]] = {
    "gemma2": {
        "gemma2.attention.sliding_window": 40,
        "gemma2.attn_logit_softcapping": 5.0,
        "gemma2.final_logit_softcapping": 4.0,
    },
    "gemma3_text": {"gemma3.attention.sliding_window": 40},
    "phi3": {"phi3.attention.sliding_window": 40},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_other_families_give_the_checkpoint_of_the_folder(name: str, tmp_path: Path) -> None:
    tiny = replace(TINY[name], config=TINY[name].config | PUBLISHED[name])
    model = tiny.save(tmp_path / "hf")
    gguf = FAMILIES[name].gguf
    assert gguf is not None
    write_model(tmp_path / "m.gguf", model, gguf.name, **FIELDS.get(name, {}))
    model.save_pretrained(tmp_path / "hf")
    for out, source in (("a", tmp_path / "hf"), ("b", tmp_path / "m.gguf")):
        convert(source, tmp_path / out)
    a, b = Checkpoint(tmp_path / "a"), Checkpoint(tmp_path / "b")
    assert {**vars(a.config), "pretrained_config": {}} == {**vars(b.config), "pretrained_config": {}}
    for tensor in tensor_shapes(a.config):
        assert np.allclose(a.tensor(tensor), b.tensor(tensor), rtol=0, atol=2e-7), tensor


def test_gguf_and_folder_give_the_same_checkpoint(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", tie_word_embeddings=True, **SMALL)
    write_llama(tmp_path / "m.gguf", model)
    for name, source in (("a", tmp_path / "hf"), ("b", tmp_path / "m.gguf")):
        convert(source, tmp_path / name, ConvertOptions("int8"))
    assert (tmp_path / "a/rank0.safetensors").read_bytes() == (tmp_path / "b/rank0.safetensors").read_bytes()
    a, b = Checkpoint(tmp_path / "a").config, Checkpoint(tmp_path / "b").config
    assert {**vars(a), "pretrained_config": {}} == {**vars(b), "pretrained_config": {}}


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("F16", "bfloat16"), ("Q8_0", "bfloat16")])
def test_the_main_type_decides_the_dtype(kind: str, dtype: str, tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", tiny_llama(tmp_path / "hf", **SMALL), GGMLQuantizationType[kind])
    convert(tmp_path / "m.gguf", tmp_path / "ckpt")
    assert Checkpoint(tmp_path / "ckpt").config.dtype == dtype


def test_the_tokenizer_is_rebuilt(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", tiny_llama(tmp_path / "hf", **SMALL), **{"tokenizer.ggml.eot_token_id": 1})
    convert(tmp_path / "m.gguf", tmp_path / "ckpt")
    ours, theirs = Tokenizer.from_folder(tmp_path / "ckpt"), AutoTokenizer.from_pretrained(tmp_path / "ckpt")
    for text in vocab.CORPUS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("<|im_start|>12") == [1, *ours.encode("1"), *ours.encode("2")]
    assert (ours.bos_token_id, ours.eos_token_id) == (1, 2)
    assert theirs.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"
    generation = json.loads((tmp_path / "ckpt/generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 1]}
    vocab.section(tmp_path / "ckpt", 320)


def test_phi3_without_a_window_or_scaling(tmp_path: Path) -> None:
    """Phi-4: a window of 0 is none."""
    plain = {"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}}
    tiny = replace(TINY["phi3"], config={**TINY["phi3"].config, **plain})
    model = tiny.save(tmp_path / "hf")
    write_model(tmp_path / "m.gguf", model, "phi3", **{"phi3.attention.sliding_window": 0})
    convert(tmp_path / "m.gguf", tmp_path / "ckpt", ConvertOptions(dtype="float32"))
    checkpoint = Checkpoint(tmp_path / "ckpt")
    assert checkpoint.config.sliding_window is None
    tokens = random_tokens(40)
    assert (
        distance(Interpreter(decoder(checkpoint.config), checkpoint, 512).run(tokens), logits_of(model, tokens)) < 1e-4
    )


def test_description(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", **SMALL)
    write_llama(tmp_path / "m.gguf", model)
    found = describe_source(tmp_path / "m.gguf")
    assert (found["kind"], found["model_type"], found["parameters"]) == ("gguf", "llama", model.num_parameters())


def test_llama3_divisors_are_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(head_dim=128, rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **scaling})
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    assert np.allclose(plain / frequencies.numpy(), llama3_divisors(500000.0, 128, 8.0, 1.0, 4.0, 8192), rtol=1e-4)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("llama.expert_count", 8, "expert_count"),
        ("llama.attention.sliding_window", 100, "sliding_window"),
        ("llama.rope.scaling.type", "yarn", "rope scaling"),
        ("split.count", 3, "one of 3 parts"),
        ("tokenizer.ggml.add_bos_token", 1, None),
    ],
)
def test_fields_that_could_change_the_model_are_refused(field: str, value: object, word: str, tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", tiny_llama(tmp_path / "hf", **SMALL), **{field: value})
    if word is None:
        convert(tmp_path / "m.gguf", tmp_path / "ckpt")
        assert Tokenizer.from_folder(tmp_path / "ckpt").encode("1")[0] == 1
        return
    with pytest.raises(SourceError, match=word):
        convert(tmp_path / "m.gguf", tmp_path / "ckpt")


def header(*parts: bytes) -> bytes:
    """GGUF 3 with one field."""
    return b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"".join(parts)


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


KEY = u64(1) + b"k"
HOSTILE = {
    "empty": b"",
    "magic only": b"GGUF",
    "big-endian": b"GGUF" + (3).to_bytes(4, "big") + bytes(16),
    "huge counts": b"GGUF" + u32(3) + u64(1 << 60) + u64(1 << 60),
    "huge string": header(u64(1 << 62), b"x"),
    "huge array": header(KEY, u32(9), u32(0), u64(1 << 60)),
    "huge array of strings": header(KEY, u32(9), u32(8), u64(1 << 60)),
    "arrays in arrays": header(KEY, *[u32(9), u64(1)] * 50),
    "unknown type": header(KEY, u32(77)),
    "not utf-8": header(u64(2), b"\xff\xff", u32(8), u64(0)),
    "alignment": header(u64(17) + b"general.alignment", u32(4), u32(3)),
    "alignment text": header(u64(17) + b"general.alignment", u32(8), u64(1) + b"x"),
    "truncated": header(KEY, u32(10), b"\0\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(HOSTILE[name])
    with pytest.raises(SourceError):
        GgufFile(tmp_path / "m.gguf")


def test_a_tensor_name_without_a_dot_is_read_like_any_other(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", tiny_llama(tmp_path / "hf", **SMALL))
    raw = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(raw.replace(b"output_norm.weight", b"output_norm_weight"))
    assert GgufSource(tmp_path / "m.gguf").rows("output_norm_weight", slice(0, 2)).shape == (2,)
    with pytest.raises(SourceError, match=r"lacks the tensor model\.norm\.weight"):
        convert(tmp_path / "m.gguf", tmp_path / "ckpt")


def test_truncated_tensors_are_found_before_they_are_read(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", tiny_llama(tmp_path / "hf", **SMALL))
    raw = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(raw[:-100])
    with pytest.raises(SourceError, match="truncated"):
        convert(tmp_path / "m.gguf", tmp_path / "ckpt")
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("moved", [-32, 32, 4])
def test_a_tensor_that_lies_over_another_or_apart_is_refused(moved: int, tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", tiny_llama(tmp_path / "hf", **SMALL))
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    name = b"blk.1.attn_norm.weight"
    at = raw.index(name) + len(name) + 4 + 8 + 4  # behind the count of dimensions, one dimension, and the type
    raw[at : at + 8] = u64(int.from_bytes(raw[at : at + 8], "little") + moved)
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(SourceError, match="begins at byte"):
        GgufFile(tmp_path / "m.gguf")
