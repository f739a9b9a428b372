"""The linears of every ISA level against their meaning (plugins/linear/reference.py)."""

import numpy as np
import pytest

from precast._native import kernels
from precast.errors import EngineError
from precast.plugins.activation.reference import KINDS as ACTIVATIONS
from precast.plugins.activation.reference import gated_activation
from precast.plugins.linear import reference
from precast.plugins.linear.layout import INT8_TAG, interleave_gate_up, pack
from tests.unit.linear_calls import BF16, PackedLinear, quantize_tile, random_weight

SHAPES = [(16, 40), (40, 100), (100, 576), (72, 1536)]  # (N, K)
KINDS = ["i8", "bf16", "f32"]


def rounded_as(level, kind, x):
    """x as the kernel sees it: the AVX-512 bf16 dot product takes bf16 activations."""
    return x.astype(BF16).astype(np.float32) if (level, kind) == ("avx512", "bf16") else x


def expected(level, kind, x, weight, scale, group):
    if kind == "i8":
        return reference.linear_int8(x, weight, scale, group)
    return reference.linear(rounded_as(level, kind, x), weight)


def assert_close(y, want):
    assert np.max(np.abs(y - want)) <= 1e-5 * np.std(want)


@pytest.mark.parametrize("group", [0, 32, 64, 128])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int8_is_exact_but_for_the_last_bit(level, n, k, group):
    rng = np.random.default_rng(1)
    weight, scale = random_weight(rng, "i8", n, k)
    linear = PackedLinear(level, weight, scale, group)
    for rows in range(1, 34):
        x = rng.standard_normal((rows, k)).astype(np.float32)
        want = reference.linear_int8(x, weight, scale, group)
        np.testing.assert_array_max_ulp(linear(x)[:, :n], want, maxulp=1)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_float_linear(level, kind, n, k):
    rng = np.random.default_rng(2)
    weight, _ = random_weight(rng, kind, n, k)
    linear = PackedLinear(level, weight)
    for rows in range(1, 34):
        x = rng.standard_normal((rows, k)).astype(np.float32)
        assert_close(linear(x)[:, :n], expected(level, kind, x, weight, None, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_padded_channels_are_zero(level, kind):
    rng = np.random.default_rng(3)
    weight, scale = random_weight(rng, kind, 20, 100)
    y = PackedLinear(level, weight, scale)(rng.standard_normal((3, 100)).astype(np.float32))
    assert y.shape == (3, 32)
    assert not y[:, 20:].any()


@pytest.mark.parametrize("group", [0, 32, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_row_depend_on_the_row_alone(level, kind, group):
    if kind != "i8" and group:
        return
    rng = np.random.default_rng(4)
    # Eleven panels: an odd number, so that each way to take several panels at once has a remainder.
    weight, scale = random_weight(rng, kind, 170, 1536)
    linear = PackedLinear(level, weight, scale, group)
    x = rng.standard_normal((33, 1536)).astype(np.float32)
    whole = linear(x)
    for tile_rows in range(1, linear.tile_rows + 1):
        for call_tiles in range(1, linear.call_tiles + 1):
            for panels_per_call in (1, 2, 3, 5, 11):
                y = linear(x, tile_rows=tile_rows, call_tiles=call_tiles, panels_per_call=panels_per_call)
                assert y.tobytes() == whole.tobytes(), (tile_rows, call_tiles, panels_per_call)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_panels_of_the_call_are_written(level, kind):
    rng = np.random.default_rng(5)
    weight, scale = random_weight(rng, kind, 112, 64)
    linear = PackedLinear(level, weight, scale)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    whole = linear(x)
    y = np.full((2, 112), 5, np.float32)
    linear.call(x, 2, y, None, None, "none", (2, 5))
    assert (y[:, 32:80] == whole[:, 32:80]).all()
    assert (y[:, :32] == 5).all()
    assert (y[:, 80:] == 5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_bias_and_aliased_residual(level, kind):
    rng = np.random.default_rng(6)
    weight, scale = random_weight(rng, kind, 40, 100)
    linear = PackedLinear(level, weight, scale)
    bias = linear.pad(rng.standard_normal(40).astype(np.float32))
    for rows in (1, 2, 7):
        x = rng.standard_normal((rows, 100)).astype(np.float32)
        residual = rng.standard_normal((rows, 48)).astype(np.float32)
        plain = linear(x)
        assert (linear(x, bias) == plain + bias).all()
        assert (linear(x, epilogue="add", residual=residual) == residual + plain).all()
        assert (linear(x, bias, epilogue="add", residual=residual) == residual + (plain + bias)).all()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gate_of_interleaved_gate_and_up(level, kind, with_bias, activation):
    rng = np.random.default_rng(7)
    n, k = 50, 100
    gate, gate_scale = random_weight(rng, kind, n, k)
    up, up_scale = random_weight(rng, kind, n, k)
    scale = interleave_gate_up(gate_scale, up_scale) if kind == "i8" else None
    linear = PackedLinear(level, interleave_gate_up(gate, up), scale)
    biases = rng.standard_normal((2, n)).astype(np.float32)
    bias = interleave_gate_up(*biases) if with_bias else None
    for rows in (1, 3, 12, 13):
        x = (10 * rng.standard_normal((rows, k))).astype(np.float32)
        g = expected(level, kind, x, gate, gate_scale, 0) + with_bias * biases[0]
        u = expected(level, kind, x, up, up_scale, 0) + with_bias * biases[1]
        want = gated_activation(activation, g, u)
        for panels_per_call in (2, 4, 8):
            y = linear(x, bias, epilogue="gated", activation=activation, panels_per_call=panels_per_call)
            assert_close(y[:, :n], want)
            assert not y[:, n:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_in_the_epilogue(level, kind, activation):
    rng = np.random.default_rng(11)
    weight, scale = random_weight(rng, kind, 40, 100)
    linear = PackedLinear(level, weight, scale)
    bias = linear.pad(rng.standard_normal(40).astype(np.float32))
    for rows in (1, 2, 7):
        x = rng.standard_normal((rows, 100)).astype(np.float32)
        want = linear(x, bias).ravel()
        kernels.activation(level, activation, want, want)
        assert (linear(x, bias, epilogue="act", activation=activation).ravel() == want).all()


def test_huge_gates(level):
    gates = np.array([-3e38, -1e30, -100, -88, -20, -1e-30, 0, 1e-30, 20, 100, 1e30, 3e38, -np.inf, np.inf, np.nan, 1])
    gate, up = np.zeros((2, 16, 4), np.float32)
    gate[:, 0], up[:, 1] = 1, 1  # x[0] reaches all gates, x[1] all ups
    linear = PackedLinear(level, interleave_gate_up(gate, up))
    for value in gates.astype(np.float32):
        y = linear(np.array([[value, 3, 0, 0]], np.float32), epilogue="gated")[0, 0]
        # 0 · inf in the dot product: an infinite gate makes its up NaN
        want = gated_activation("silu", value, np.float32(3)) if np.isfinite(value) else np.float32(np.nan)
        np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-35)


@pytest.mark.parametrize("group", [0, 32])
def test_hostile_rows_stay_with_themselves(level, group):
    rng = np.random.default_rng(8)
    for kind in KINDS:
        weight, scale = random_weight(rng, kind, 40, 128)
        linear = PackedLinear(level, weight, scale, group if kind == "i8" else 0)
        x = rng.standard_normal((9, 128)).astype(np.float32)
        calm = linear(x)
        hostile = x.copy()
        hostile[0] = 1e30 * x[0]
        hostile[1] = 0
        hostile[2] = 1e-42 * x[2]
        hostile[3, 5] = np.nan
        hostile[5, 127] = np.inf
        hostile[7, 0] = -np.inf
        y = linear(hostile)
        np.testing.assert_allclose(y[0], 1e30 * calm[0], rtol=0.05 if kind == "i8" else 1e-3, atol=1e28)
        assert not y[1].any()
        assert np.isfinite(y[2]).all()
        assert np.abs(y[2]).max() <= 1e-38
        assert not np.isfinite(y[[3, 5, 7], :40]).any()
        assert np.isnan(y[3, :40]).all()
        assert (y[[4, 6, 8]] == calm[[4, 6, 8]]).all()


def test_int8_sums_hold_at_the_largest_k(level):
    k = 133_120
    weight = np.full((16, k), 127, np.int8)
    weight[1] = -127
    x = np.full((1, k), 3, np.float32)
    x[0, 0] = -3
    y = PackedLinear(level, weight, np.ones(16, np.float32))(x)
    want = np.float32(127 * 127 * (k - 2)) * np.float32(np.float32(3) / np.float32(127))
    assert y[0, 0] == want
    assert y[0, 1] == -want


@pytest.mark.parametrize(("cols", "k"), [(40, 40), (100, 128), (576, 576), (3, 4), (33, 96)])
@pytest.mark.parametrize("group", [0, 32, 64, 4, 12])
def test_quantize_tile(level, cols, k, group):
    if group and k % group:
        return
    rng = np.random.default_rng(9)
    for rows in range(1, kernels.tile_rows(level)[0] + 1):
        x = (rng.standard_normal((rows, cols)) * 10.0 ** rng.integers(-3, 4, (rows, 1))).astype(np.float32)
        x[rows // 2, cols // 2] = 0.5  # ties and zeros
        x[0] = np.arange(cols) % 5 - 2
        q, scale, sums = quantize_tile(level, x, k, group)
        padded = np.zeros((rows, k), np.float32)
        padded[:, :cols] = x
        want_q, want_scale = reference.quantize(padded, group)
        assert (q.transpose(1, 0, 2).reshape(rows, k) == want_q).all()
        assert (want_scale == scale.T).all()
        assert (want_q.reshape(rows, len(scale), -1).sum(-1, dtype=np.int32) == sums.T).all()


def test_quantize_tile_of_hostile_rows(level):
    tiny = np.float32(1e-45)
    rows = [
        [0, -0.0, 0, 0],
        [190 * tiny, -tiny, 0, 0],  # the scale rounds down: x / scale is 190
        [50 * tiny, tiny, 0, 0],  # the scale underflows to 0
        [np.nan, 1, 2, 3],
        [1, np.inf, 2, 3],
        [1, 2, np.inf, np.nan],
        [3.4e38, -3.4e38, 1e38, 1],
        [63.5, 127, 0.5, 1.5],  # ties go to even
    ]
    for row in rows:
        x = np.array([row], np.float32)
        q, scale, sums = quantize_tile(level, x, 4, 4)
        want_q, want_scale = reference.quantize(x, 4)
        assert (q.reshape(1, 4) == want_q).all()
        np.testing.assert_array_equal(scale.T, want_scale)
        assert sums[0, 0] == want_q.sum()
    assert (quantize_tile(level, np.array([rows[-1]], np.float32), 4, 0)[0].ravel() == [64, 127, 0, 2]).all()


def test_wrong_arguments_are_value_errors(level):
    rng = np.random.default_rng(10)
    weight, scale = random_weight(rng, "i8", 32, 64)
    w = pack(INT8_TAG[level], weight)
    x = np.zeros((1, 64), np.float32)
    q, s, t = quantize_tile(level, x, 64, 0)
    y = np.zeros((1, 32), np.float32)
    wide = np.zeros((1, 33), np.float32)
    tall = np.zeros((kernels.tile_rows(level)[1] + 1, 64), np.float32)
    f = pack("panel16.f32", np.zeros((32, 64), np.float32))
    i8, f32 = kernels.linear_i8, kernels.linear_f32
    calls = [
        lambda: i8(level, f, scale, 0, [(q, s, t)], y),
        lambda: i8(level, w[:, :0].copy(), scale, 0, [(q, s, t)], y),
        lambda: i8(level, w, scale[:16].copy(), 0, [(q, s, t)], y),
        lambda: i8(level, w, scale, 48, [(q, s, t)], y),
        lambda: i8(level, w, scale, -4, [(q, s, t)], y),
        lambda: i8(level, w, scale, 32, [(q, s, t)], y),
        lambda: i8(level, w, scale, 0, [(q[:8].copy(), s, t)], y),
        lambda: i8(level, w, scale, 0, [], y),
        lambda: i8(level, w, scale, 0, [(q, s, t)] * 7, np.zeros((7, 32), np.float32)),
        lambda: i8(level, w, scale, 0, [(q, s, t), quantize_tile(level, np.zeros((2, 64), np.float32), 64, 0)], y),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y[:, :16].copy()),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, bias=scale[:16].copy()),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, residual=y),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, epilogue="add"),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, epilogue="add", residual=wide),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, epilogue="gelu"),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, epilogue="act", activation="softsign"),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, epilogue="gated", panel_begin=1),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, panel_end=3),
        lambda: i8(level, w, scale, 0, [(q, s, t)], y, panel_begin=-1),
        lambda: f32(level, f, x[:, :60].copy(), y),
        lambda: f32(level, f, tall, np.zeros((len(tall), 32), np.float32)),
        lambda: f32(level, w, x, y),
        lambda: kernels.linear_bf16(level, f, x, y),
        lambda: kernels.quantize_tile(level, x, 60, 0, q, s, t),
        lambda: kernels.quantize_tile(level, x, 64, 48, q, s, t),
        lambda: kernels.quantize_tile(level, x, 64, 0, q[:8].copy(), s, t),
        lambda: kernels.quantize_tile(level, tall, 64, 0, q, s, t),
        lambda: kernels.gather_f32(level, f, 32, np.zeros(64, np.float32)),
        lambda: kernels.gather_f32(level, f, -1, np.zeros(64, np.float32)),
        lambda: kernels.gather_i8(level, w, scale, 0, np.zeros(63, np.float32)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"\w"):
            call()


def test_an_unknown_level_is_named():
    with pytest.raises(EngineError, match="sse9"):
        kernels.tile_rows("sse9")
