"""The offline rotation: orthogonal, seeded, and the same whichever way it is applied."""

from __future__ import annotations

import numpy as np
import pytest

from precast.quantize.rotation import Rotation, hadamard

SIZES = [1, 2, 7, 40, 64, 80, 96, 128, 576, 896, 2048]


@pytest.mark.parametrize("n", [1, 2, 8, 64, 256])
def test_hadamard_is_orthonormal_and_flat(n: int) -> None:
    h = hadamard(n)
    assert np.allclose(h @ h.T, np.eye(n), atol=1e-6)
    assert np.allclose(np.abs(h), n**-0.5)


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_rotation_is_orthogonal(size: int, signs: bool) -> None:
    q = Rotation(size, 0, signs).apply(np.eye(size, dtype=np.float32))
    assert np.allclose(q @ q.T, np.eye(size), atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_every_way_of_applying_is_the_same_matrix(size: int) -> None:
    rotation = Rotation(size, 3)
    q = rotation.apply(np.eye(size, dtype=np.float32)).astype(np.float64)
    x = np.random.default_rng(0).standard_normal((5, 3, size)).astype(np.float32)
    assert np.allclose(rotation.apply(x), x @ q, atol=1e-5)
    assert np.allclose(rotation.apply(x[0, 0]), x[0, 0] @ q, atol=1e-5)
    weight = x.reshape(-1, size).T
    assert np.allclose(rotation.apply_rows(weight), q.T @ weight, atol=1e-5)


def test_one_outlier_is_spread_over_all_channels() -> None:
    x = np.zeros(576, np.float32)
    x[17] = 100
    assert np.abs(Rotation(576, 0).apply(x)).max() < 100 / 8


def test_the_seed_decides() -> None:
    x = np.random.default_rng(0).standard_normal(96).astype(np.float32)
    assert (Rotation(96, 5).apply(x) == Rotation(96, 5).apply(x)).all()
    assert not np.allclose(Rotation(96, 5).apply(x), Rotation(96, 6).apply(x))


def test_what_is_applied_stays_as_it_was() -> None:
    x = np.ones((2, 64), np.float32)
    Rotation(64, 0).apply(x)
    assert (x == 1).all()
