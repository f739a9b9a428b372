"""Norms and rope of every ISA level against their meaning."""

import numpy as np
import pytest

from precast._native import kernels
from precast.plugins.layer_norm import reference as layer_norm_reference
from precast.plugins.rms_norm import reference as rms_norm_reference
from precast.plugins.rope import reference as rope_reference

SIZES = [1, 3, 8, 16, 33, 64, 576, 640, 2048, 2049]


def rms_norm(level, x, gain, epsilon):
    y = np.empty_like(x)
    kernels.rms_norm(level, x, gain, epsilon, y)
    return y


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("with_gain", [False, True])
def test_rms_norm(level, n, with_gain):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((5, n)) * 10.0 ** rng.integers(-6, 6, (5, 1))).astype(np.float32)
    x[2] = 0
    gain = rng.standard_normal(n).astype(np.float32) if with_gain else None
    want = rms_norm_reference.rms_norm(x, gain, 1e-5)
    np.testing.assert_allclose(rms_norm(level, x, gain, 1e-5), want, rtol=1e-5, atol=0)


def test_rms_norm_in_place_and_alone_gives_the_same_bits(level):
    x = np.random.default_rng(1).standard_normal((7, 577)).astype(np.float32)
    whole = rms_norm(level, x, None, 1e-6)
    for i in range(7):
        row = x[i : i + 1].copy()
        kernels.rms_norm(level, row, None, 1e-6, row)
        assert row.tobytes() == whole[i].tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rms_norm_of_a_broken_row(level, value):
    x = np.random.default_rng(2).standard_normal((3, 100)).astype(np.float32)
    calm = rms_norm(level, x, None, 1e-6)
    x[1, 77] = value
    y = rms_norm(level, x, None, 1e-6)
    assert np.isnan(y[1, 77])
    assert (y[[0, 2]] == calm[[0, 2]]).all()


def layer_norm(level, x, gain, bias, epsilon):
    y = np.empty_like(x)
    kernels.layer_norm(level, x, gain, bias, epsilon, y)
    return y


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("with_gain", "with_bias"), [(False, False), (True, False), (False, True), (True, True)])
def test_layer_norm(level, n, with_gain, with_bias):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((6, n)) * 10.0 ** rng.integers(-3, 6, (6, 1))).astype(np.float32)
    x[2] = 0
    x[3] = 7.25  # a constant row: nothing but the bias
    gain, bias = rng.standard_normal((2, n)).astype(np.float32)
    gain, bias = gain if with_gain else None, bias if with_bias else None
    want = layer_norm_reference.layer_norm(x, gain, bias, 1e-5)
    np.testing.assert_allclose(layer_norm(level, x, gain, bias, 1e-5), want, rtol=1e-5, atol=1e-5)


def test_layer_norm_of_a_large_mean(level):
    x = (1000 + np.random.default_rng(3).standard_normal((4, 768))).astype(np.float32)
    want = layer_norm_reference.layer_norm(x, None, None, 1e-5)
    np.testing.assert_allclose(layer_norm(level, x, None, None, 1e-5), want, rtol=0, atol=2e-4)


def test_layer_norm_in_place_and_alone_gives_the_same_bits(level):
    x, gain, bias = np.random.default_rng(1).standard_normal((3, 7, 577)).astype(np.float32)
    whole = layer_norm(level, x, gain[0].copy(), bias[0].copy(), 1e-6)
    for i in range(7):
        row = x[i : i + 1].copy()
        kernels.layer_norm(level, row, gain[0].copy(), bias[0].copy(), 1e-6, row)
        assert row.tobytes() == whole[i].tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 77, 99])
def test_layer_norm_of_a_broken_row(level, value, column):
    x = np.random.default_rng(2).standard_normal((3, 100)).astype(np.float32)
    calm = layer_norm(level, x, None, None, 1e-6)
    x[1, column] = value
    y = layer_norm(level, x, None, None, 1e-6)
    assert np.isnan(y[1]).all()
    assert np.isnan(layer_norm_reference.layer_norm(x, None, None, 1e-6)[1]).all()
    assert (y[[0, 2]] == calm[[0, 2]]).all()


@pytest.mark.parametrize("head_size", [40, 64, 80, 96, 128, 256, 576])
@pytest.mark.parametrize("part", [1.0, 0.5, 0.25])
def test_rope(level, head_size, part):
    rotary_dim = int(head_size * part) // 2 * 2
    rng = np.random.default_rng(head_size)
    positions = np.array([0, 1, 17, 4095, 131071])
    frequencies = (10000.0 ** -(np.arange(rotary_dim // 2) / (rotary_dim // 2))).astype(np.float32)
    cos, sin = rope_reference.rope_cos_sin(positions, frequencies)
    x = rng.standard_normal((len(positions), 3, head_size)).astype(np.float32)
    want = rope_reference.rope(x, cos, sin, rotary_dim)
    got = x.copy()
    kernels.rope(level, got, cos, sin)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert (got[0] == x[0]).all()
    assert (got[..., rotary_dim:] == x[..., rotary_dim:]).all()


def test_rope_keeps_scores_a_matter_of_distance():
    frequencies = (10000.0 ** -(np.arange(32) / 32)).astype(np.float32)
    q, k = np.random.default_rng(5).standard_normal((2, 1, 1, 64)).astype(np.float32)

    def score(i, j):
        rotated = [
            rope_reference.rope(x, *rope_reference.rope_cos_sin([p], frequencies), 64) for x, p in ((q, i), (k, j))
        ]
        return float((rotated[0] * rotated[1]).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), abs=1e-4)
    assert abs(score(7, 3) - score(7, 4)) > 1e-2


def test_wrong_arguments_are_value_errors(level):
    x = np.zeros((2, 3, 8), np.float32)
    calls = [
        lambda: kernels.rope(level, x, np.zeros((2, 5), np.float32), np.zeros((2, 5), np.float32)),
        lambda: kernels.rope(level, x, np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32)),
        lambda: kernels.rope(level, x, np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32)),
        lambda: kernels.rms_norm(level, x[0], x[0, 0, :5].copy(), 1e-5, x[0]),
        lambda: kernels.rms_norm(level, x[0], None, 1e-5, x[1, :2]),
        lambda: kernels.layer_norm(level, x[0], x[0, 0, :5].copy(), None, 1e-5, x[0]),
        lambda: kernels.layer_norm(level, x[0], None, x[0, 0, :5].copy(), 1e-5, x[0]),
        lambda: kernels.layer_norm(level, x[0], None, None, 1e-5, x[1, :2]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"\w"):
            call()
