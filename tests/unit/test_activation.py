"""Activation functions of every ISA level against their meaning."""

import numpy as np
import pytest

from precast._native import kernels
from precast.plugins.activation.reference import KINDS, activation, gated_activation

# Units in the last place over −2 … ∞. The smooth kinds lose more where they vanish: e^−z magnifies the rounding of z.
MAX_ULP = {"silu": 3, "gelu": 7, "gelu_tanh": 6, "gelu_quick": 5, "relu": 0, "relu2": 0}


def run(level, kind, x):
    y = np.full_like(x, 99)
    kernels.activation(level, kind, x, y)
    return y


@pytest.mark.parametrize("kind", KINDS)
def test_activation_is_accurate_to_the_last_bits(level, kind):
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-2, 20, 20_001), rng.standard_normal(5000) * 10.0 ** rng.integers(-30, 1, 5000)])
    x = x[x > -2].astype(np.float32)
    np.testing.assert_array_max_ulp(run(level, kind, x), activation(kind, x), MAX_ULP[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_the_far_left_vanishes_smoothly(level, kind):
    x = np.linspace(-100, -2, 10_001).astype(np.float32)
    np.testing.assert_allclose(run(level, kind, x), activation(kind, x), rtol=1e-5, atol=1e-35)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_values(level, kind):
    tiny = 1e-45
    x = np.array([0, tiny, -tiny, 1e-38, 1e18, 3e38, -1e18, -3e38, np.inf, -np.inf, np.nan, -88, -87, 88, 1, -14, -13])
    x = x.astype(np.float32)
    got = run(level, kind, x)
    np.testing.assert_allclose(got, activation(kind, x), rtol=1e-5, atol=1e-36)
    for i in range(len(x)):  # wherever it stands in a vector
        assert run(level, kind, x[i : i + 1]).tobytes() == got[i : i + 1].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_differ(kind):
    x = np.linspace(-3, 3, 101).astype(np.float32)
    others = [activation(k, x) for k in KINDS if k != kind]
    assert min(np.abs(activation(kind, x) - other).max() for other in others) > 1e-4


@pytest.mark.parametrize("n", [1, 7, 8, 16, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_gated_activation(level, kind, n):
    gate, up = 3 * np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    y = np.empty_like(gate)
    kernels.gated_activation(level, kind, gate, up, y)
    np.testing.assert_allclose(y, gated_activation(kind, gate, up), rtol=3e-6)
    assert (y == run(level, kind, gate) * up).all()
    kernels.gated_activation(level, kind, gate, up, gate)  # in place
    assert gate.tobytes() == y.tobytes()


def test_wrong_arguments_are_value_errors(level):
    x = np.zeros(8, np.float32)
    calls = [
        lambda: kernels.activation(level, "softsign", x, x),
        lambda: kernels.activation(level, "silu", x, x[:5].copy()),
        lambda: kernels.gated_activation(level, "silu", x, x[:5].copy(), x),
        lambda: kernels.gated_activation(level, "silu", x, x, x[:5].copy()),
        lambda: activation("softsign", x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"\w"):
            call()
