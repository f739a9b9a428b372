"""scale, add and softcap of every ISA level against their meaning."""

import numpy as np
import pytest

from precast._native import kernels
from precast.plugins.add.reference import add
from precast.plugins.scale.reference import scale
from precast.plugins.softcap.reference import softcap

HOSTILE = np.array([0, -0.0, 1e-45, -1e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 1, 2, 3], np.float32)


@pytest.mark.parametrize("n", [1, 7, 8, 16, 33])
def test_scale_and_add(level, n):
    x, y = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    got = np.empty_like(x)
    kernels.scale(level, x, 0.3, got)
    assert (got == scale(x, 0.3)).all()
    kernels.add(level, x, y, got)
    assert (got == add(x, y)).all()
    kernels.add(level, x, y, y)  # in place
    assert (y == got).all()


def test_scale_and_add_of_hostile_values(level):
    got = np.empty_like(HOSTILE)
    with np.errstate(over="ignore", invalid="ignore"):
        kernels.scale(level, HOSTILE, -2.0, got)
        np.testing.assert_array_equal(got, scale(HOSTILE, -2.0))
        kernels.add(level, HOSTILE, HOSTILE[::-1].copy(), got)
        np.testing.assert_array_equal(got, add(HOSTILE, HOSTILE[::-1]))


@pytest.mark.parametrize("cap", [1.0, 30.0, 50.0])
def test_softcap_is_accurate_to_the_last_bits(level, cap):
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-15, 15, 30_001), rng.standard_normal(5000) * 10.0 ** rng.integers(-30, 1, 5000)])
    x = (cap * x).astype(np.float32)
    got = np.empty_like(x)
    kernels.softcap(level, x, cap, got)
    np.testing.assert_array_max_ulp(got, softcap(x, cap), 4)
    assert (np.abs(got) <= cap).all()


def test_softcap_of_hostile_values(level):
    got = np.empty_like(HOSTILE)
    kernels.softcap(level, HOSTILE, 30.0, got)
    np.testing.assert_allclose(got, softcap(HOSTILE, 30.0), rtol=1e-6, atol=1e-40)
    for i in range(len(HOSTILE)):  # wherever it stands in a vector
        one = HOSTILE[i : i + 1].copy()
        kernels.softcap(level, one, 30.0, one)
        assert one.tobytes() == got[i : i + 1].tobytes()


def test_wrong_arguments_are_value_errors(level):
    x, short = np.zeros(8, np.float32), np.zeros(5, np.float32)
    calls = [
        lambda: kernels.scale(level, x, 1.0, short),
        lambda: kernels.add(level, x, short, x),
        lambda: kernels.add(level, x, x, short),
        lambda: kernels.softcap(level, x, 1.0, short),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"\w"):
            call()
