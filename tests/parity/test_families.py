"""Every family against transformers: its config in both layouts, its logits, and that each of its features is felt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from precast.builder import BuildOptions, build
from precast.builder.interpreter import Interpreter
from precast.builder.models.decoder import decoder
from precast.builder.passes import lower
from precast.builder.weights import Checkpoint
from precast.checkpoint import ModelConfig
from precast.checkpoint_rules import model_faults
from precast.quantize import ConvertOptions, convert
from precast.quantize.convert import rotatable
from precast.quantize.families import FAMILIES
from tests.parity.models import TOLERANCE
from tests.parity.mutations import Changed, mutants, optional_tensors
from tests.steps import Sequence, Steps
from tests.tiny import distance, logits_of, random_tokens
from tests.tiny_families import TINY, write_old

Array = npt.NDArray[Any]

TOKENS = random_tokens(72)
"""More than every window and original rope length of the tiny models."""


@dataclass(frozen=True)
class Made:
    """A tiny model, its checkpoint, and transformers' logits of TOKENS."""

    model: Any
    folder: Path
    checkpoint: Checkpoint
    expected: Array


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """model_type → Made, each made once."""

    @cache
    def make(name: str) -> Made:
        folder = tmp_path_factory.mktemp(name)
        model = TINY[name].save(folder / "hf")
        convert(folder / "hf", folder / "ckpt")
        return Made(model, folder, Checkpoint(folder / "ckpt"), logits_of(model, TOKENS))

    return make


def without_source(config: ModelConfig) -> ModelConfig:
    return replace(config, pretrained_config={})


def test_every_family_has_a_tiny_model() -> None:
    assert TINY.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", TINY)
def test_the_interpreter_gives_transformers_logits(name: str, made: Any) -> None:
    it: Made = made(name)
    plain = decoder(it.checkpoint.config)
    for graph in (plain, lower(plain, it.checkpoint.config)):
        interpreter = Interpreter(graph, it.checkpoint, 512)
        logits = [interpreter.run(part) for part in (TOKENS[:50], TOKENS[50:71], TOKENS[71:])]
        assert distance(np.concatenate(logits), it.expected) < TOLERANCE


@pytest.mark.parametrize("name", TINY)
def test_the_older_config_gives_the_same_checkpoint(name: str, made: Any, tmp_path: Path) -> None:
    it: Made = made(name)
    for file in (it.folder / "hf").iterdir():
        (tmp_path / "hf").mkdir(exist_ok=True)
        (tmp_path / "hf" / file.name).write_bytes(file.read_bytes())
    write_old(tmp_path / "hf", TINY[name])
    assert (tmp_path / "hf/config.json").read_bytes() != (it.folder / "hf/config.json").read_bytes()
    convert(tmp_path / "hf", tmp_path / "ckpt")
    assert without_source(Checkpoint(tmp_path / "ckpt").config) == without_source(it.checkpoint.config)
    weights = "rank0.safetensors"
    assert (tmp_path / "ckpt" / weights).read_bytes() == (it.folder / "ckpt" / weights).read_bytes()


@pytest.mark.parametrize("name", TINY)
def test_rotation_is_exact_where_it_is_allowed(name: str, made: Any, tmp_path: Path) -> None:
    it: Made = made(name)
    if not rotatable(it.checkpoint.config):
        with pytest.raises(Exception, match="cannot be rotated"):
            convert(it.folder / "hf", tmp_path / "ckpt", ConvertOptions(rotate=True))
        return
    convert(it.folder / "hf", tmp_path / "ckpt", ConvertOptions(rotate=True))
    checkpoint = Checkpoint(tmp_path / "ckpt")
    interpreter = Interpreter(decoder(checkpoint.config), checkpoint, 512)
    assert distance(interpreter.run(TOKENS), it.expected) < TOLERANCE


@pytest.mark.parametrize("name", TINY)
def test_the_engine_gives_transformers_logits_and_tokens(name: str, made: Any, tmp_path: Path) -> None:
    it: Made = made(name)
    build(it.folder / "ckpt", tmp_path / "engine", BuildOptions(max_num_tokens=128, max_batch_size=4))
    steps = Steps(tmp_path / "engine")
    assert distance(steps.logits(TOKENS, (33, 30)), it.expected) < TOLERANCE
    sequence, text = Sequence(), TOKENS[:50]
    logits = steps.step([(sequence, text)], [49])
    for _ in range(16):
        text = [*text, int(logits[0].argmax())]
        logits = steps.step([(sequence, text[-1:])])
    greedy = logits_of(it.model, text)[49:-1].argmax(-1)
    assert text[50:] == greedy.tolist()


FELT = 100 * TOLERANCE


@pytest.mark.parametrize("name", TINY)
def test_no_feature_can_be_taken_away_unnoticed(name: str, made: Any) -> None:
    it: Made = made(name)
    unnoticed = {}
    for feature, config in mutants(it.checkpoint.config):
        assert not model_faults(config), feature
        interpreter = Interpreter(decoder(config), Changed(it.checkpoint, config), 512)
        if (moved := distance(interpreter.run(TOKENS), it.expected)) < FELT:
            unnoticed[feature] = moved
    for tensor in optional_tensors(it.checkpoint.config):
        changed = Changed(it.checkpoint, it.checkpoint.config, dropped=tensor)
        interpreter = Interpreter(decoder(changed.config), changed, 512)
        if (moved := distance(interpreter.run(TOKENS), it.expected)) < FELT:
            unnoticed[tensor] = moved
    assert not unnoticed
