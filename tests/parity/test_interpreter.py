"""The reference interpreter against transformers, before and after the passes, on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast.builder.interpreter import Interpreter
from precast.builder.models.decoder import decoder
from precast.builder.passes import lower
from precast.builder.weights import Checkpoint
from precast.quantize import ConvertOptions, convert
from tests.parity.models import MODELS, TOLERANCE
from tests.tiny import distance, logits_of, random_tokens, tiny_llama


@pytest.mark.parametrize("name", MODELS)
def test_interpreter_gives_transformers_logits(name: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", **MODELS[name])
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions())
    checkpoint = Checkpoint(tmp_path / "ckpt")
    plain = decoder(checkpoint.config)
    tokens = random_tokens(150)
    expected = logits_of(model, tokens)
    for graph in (plain, lower(plain, checkpoint.config)):
        interpreter = Interpreter(graph, checkpoint, 2048)
        assert distance(interpreter.run(tokens[:149]), expected[:149]) < TOLERANCE
        assert distance(interpreter.run(tokens[149:]), expected[149:]) < TOLERANCE


@pytest.mark.parametrize("name", ["plain", "tied", "biases", "head96_ratio4"])
def test_rotation_is_exact(name: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", **MODELS[name])
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions(rotate=True))
    checkpoint = Checkpoint(tmp_path / "ckpt")
    tokens = random_tokens(60)
    interpreter = Interpreter(decoder(checkpoint.config), checkpoint, 2048)
    assert distance(interpreter.run(tokens), logits_of(model, tokens)) < TOLERANCE
