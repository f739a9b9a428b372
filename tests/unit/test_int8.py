"""int8 weights: symmetric, per output channel, never −128."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from precast.quantize.int8 import quantize_weight, signal_and_noise

WEIGHTS = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(1, 20)), elements=st.floats(-(2.0**60), 2.0**60, width=32)
)


@pytest.mark.filterwarnings("error")
@given(WEIGHTS)
@example(np.float32([[1e-38, -1e-45], [2e-36, 1e-36]]))
def test_error_is_half_a_step_at_most(weight: np.ndarray) -> None:  # type: ignore[type-arg]
    q, scale = quantize_weight(weight)
    assert q.dtype == np.int8
    assert q.min() >= -127
    assert np.isfinite(scale).all()
    error = np.abs(weight.astype(np.float64) - q * scale[:, None].astype(np.float64))
    assert (error <= scale[:, None] * 0.5001 + 2e-36).all()  # smaller channels are zero


def test_the_largest_weight_of_a_channel_is_exact() -> None:
    weight = np.float32([[1, -3, 2], [0, 0, 0], [-127, 1, 64]])
    q, scale = quantize_weight(weight)
    assert q.tolist() == [[42, -127, 85], [0, 0, 0], [-127, 1, 64]]
    assert scale.tolist() == [np.float32(3 / 127), 0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="NaN"):
        quantize_weight(np.float32([[1, value]]))


def test_noise_is_measured() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    q, scale = quantize_weight(weight)
    signal, noise = signal_and_noise(weight, q, scale)
    expected = (scale.astype(np.float64) ** 2 / 12).sum() * 256  # uniform over a step
    assert signal == pytest.approx((weight.astype(np.float64) ** 2).sum(), rel=1e-4)
    assert noise == pytest.approx(expected, rel=0.05)
