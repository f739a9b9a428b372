"""Every family in int8: the engine computes what the reference interpreter computes on the same quantized weights, and
that stays near the model that was quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from precast.builder import BuildOptions, build
from precast.builder.interpreter import Interpreter
from precast.builder.models.decoder import decoder
from precast.builder.weights import Checkpoint
from precast.quantize import ConvertOptions, convert
from tests.steps import Steps
from tests.tiny import logits_of, random_tokens
from tests.tiny_families import TINY

TOKENS = random_tokens(72)
"""More than every window and original rope length of the tiny models."""

SHORT = 4
"""Tokens of a short text. An activation that lies between two int8 steps may be rounded either way, which moves the
logits of its row and of all rows behind it: of many short texts, most have no such row."""

NEAR = 0.25
"""Of the logits' standard deviation; 0.01 to 0.15 is seen, most where attention and routing are peaked."""


def deviation(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Root mean square of a − b, over the standard deviation of b."""
    return float(np.sqrt(np.mean((a - b) ** 2)) / b.std())


@pytest.mark.parametrize("name", TINY)
def test_the_engine_of_an_int8_checkpoint_is_the_reference(name: str, tmp_path: Path) -> None:
    model = TINY[name].save(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ckpt", ConvertOptions("int8"))
    options = BuildOptions(max_num_tokens=128, max_batch_size=4, kv_cache_dtype="float32")
    build(tmp_path / "ckpt", tmp_path / "engine", options)
    checkpoint, steps = Checkpoint(tmp_path / "ckpt"), Steps(tmp_path / "engine")
    graph = decoder(checkpoint.config)

    def reference(tokens: list[int]) -> npt.NDArray[Any]:
        return Interpreter(graph, checkpoint, 512).run(tokens)

    texts = [TOKENS[begin : begin + SHORT] for begin in range(0, len(TOKENS), SHORT)]
    assert np.median([deviation(steps.logits(text), reference(text)) for text in texts]) < 1e-5
    expected = reference(TOKENS)
    noise = deviation(expected, logits_of(model, TOKENS))
    assert 1e-3 < noise < NEAR
    assert deviation(steps.logits(TOKENS, (33, 30)), expected) < noise
