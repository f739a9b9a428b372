"""Scans of a vocabulary: on every ISA level exactly what plugins/sampling/reference.py says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from precast._native import kernels
from precast.plugins.sampling import reference

Row = np.ndarray[Any, np.dtype[np.float32]]
BLOCK = kernels.VOCAB_BLOCK


def row(length: int, spread: float = 5.0) -> Row:
    return np.asarray(np.random.default_rng(length).normal(size=length) * spread, np.float32)


def in_blocks(values: list[int]) -> list[list[int]]:
    return [values[i : i + BLOCK] for i in range(0, len(values), BLOCK)]


LENGTHS = [1, 7, 8, 9, 31, 33, 255, 256, 257, 300, 1000, 5 * BLOCK + 65]


@pytest.mark.parametrize("length", LENGTHS)
def test_maxima_of_blocks(level: str, length: int) -> None:
    x = row(length)
    maxima, finite = kernels.vocab_maxima(level, x)
    assert maxima == [float(x[i : i + BLOCK].max()) for i in range(0, length, BLOCK)]
    assert finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("length", [9, 300])
def test_a_value_that_is_not_finite_is_found_wherever_it_stands(level: str, length: int, bad: float) -> None:
    for at in range(length):
        x = row(length)
        x[at] = bad
        assert not kernels.vocab_maxima(level, x)[1]


@pytest.mark.parametrize("temperature", [1e-4, 0.7, 1.0, 3.0, 1000.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_weights_and_their_sums(level: str, length: int, temperature: float) -> None:
    x = row(length)
    x[:: max(3, length // 4)] = -np.inf  # banned
    x[length // 2] = 17.0
    exact = reference.weights(x, temperature)
    most, inverse = float(x.max()), float(np.float32(1 / temperature))
    assert kernels.vocab_weights(level, x, most, inverse) == exact
    assert kernels.vocab_weight_sums(level, x, most, inverse) == [sum(block) for block in in_blocks(exact)]


def test_weights_are_an_exponential() -> None:
    depths = np.linspace(0, 27, 20001).astype(np.float32)
    exact = np.exp(-depths.astype(np.float64)) * 2**40
    ours = np.array(reference.weights(-depths, 1.0), np.float64)
    assert np.all(np.abs(ours - exact) <= exact * 1e-6 + 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_positions_at_least_a_threshold(level: str, length: int) -> None:
    x = np.round(row(length))
    for threshold in (-100.0, -np.inf, 0.0, float(x.max()), 1e9):
        assert kernels.vocab_at_least(level, x, threshold) == list(np.flatnonzero(x >= threshold))
