"""Engines against transformers, on the same weights: fp32 throughout, so that only the order of sums differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.models import MODELS, TOLERANCE
from tests.steps import Sequence, Steps, make_engine
from tests.tiny import distance, logits_of, random_tokens, tiny_llama


@pytest.mark.parametrize("name", MODELS)
def test_engine_gives_transformers_logits(name: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", **MODELS[name])
    steps = Steps(make_engine(tmp_path / "hf", tmp_path))
    for length in (1, 17, 300, 1000):
        tokens = random_tokens(length + 4, seed=length)
        expected = logits_of(model, tokens)
        sequence = Sequence()
        assert distance(steps.step([(sequence, tokens[:length])]), expected[:length]) < TOLERANCE
        for at in range(length, length + 4):
            assert distance(steps.step([(sequence, tokens[at : at + 1])]), expected[at : at + 1]) < TOLERANCE
        steps.release(sequence)
