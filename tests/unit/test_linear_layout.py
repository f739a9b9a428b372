"""Packed layouts of linear weights: the formula of docs/engine-format.md, and back."""

import ml_dtypes
import numpy as np
import pytest

from precast.plugins.linear.layout import LAYOUTS, interleave_gate_up, pack, padded_shape, unpack


def sample(tag, n, k):
    rng = np.random.default_rng(n * 1000 + k)
    if LAYOUTS[tag].source == np.int8:
        return rng.integers(-127, 128, (n, k), dtype=np.int8)
    return rng.standard_normal((n, k)).astype(LAYOUTS[tag].source)


@pytest.mark.parametrize("tag", LAYOUTS)
@pytest.mark.parametrize(("n", "k", "group"), [(1, 1, 0), (16, 4, 0), (40, 100, 0), (33, 576, 64), (70, 100, 32)])
def test_pack_follows_the_format_page_and_unpack_reverses_it(tag, n, k, group):
    layout = LAYOUTS[tag]
    if layout.inner != 4:
        group = 0
    weight = sample(tag, n, k)
    packed = pack(tag, weight, group)
    padded_n, padded_k = padded_shape(tag, n, k, group)
    assert padded_n % 16 == 0
    assert padded_k % max(group, layout.inner) == 0
    assert packed.shape == (padded_n // 16, padded_k // layout.inner, 16, layout.inner)
    assert packed.dtype == layout.packed
    assert packed.flags.c_contiguous
    for channel in range(padded_n):
        for column in range(0, padded_k, 7):
            value = float(weight[channel, column]) if channel < n and column < k else 0.0
            at = packed[channel // 16, column // layout.inner, channel % 16, column % layout.inner]
            assert float(at) == value + layout.zero
    assert (unpack(tag, packed, n, k) == weight).all()
    assert unpack(tag, packed, n, k).dtype == weight.dtype


def test_packing_in_blocks_equals_packing_at_once():
    weight = sample("panel16x4.s8", 16 * 600, 512)  # more panels than one block holds
    whole = weight.reshape(600, 16, 128, 4).transpose(0, 2, 1, 3)
    assert (pack("panel16x4.s8", weight) == whole).all()


@pytest.mark.parametrize(
    ("tag", "weight", "group", "message"),
    [
        ("panel17.f32", np.zeros((1, 1), np.float32), 0, "unknown weight layout"),
        ("panel16.f32", np.zeros((1, 1), np.float64), 0, "float32"),
        ("panel16.f32", np.zeros(4, np.float32), 0, "matrix"),
        ("panel16.f32", np.zeros((0, 4), np.float32), 0, "non-empty"),
        ("panel16.f32", np.zeros((4, 4), np.float32), 32, "group 32"),
        ("panel16x4.s8", np.zeros((4, 4), np.int8), 6, "group 6"),
        ("panel16x4.s8", np.full((4, 4), -128, np.int8), 0, "-128"),
        ("panel16x4.u8", np.zeros((1, 133_121), np.int8), 0, "133120"),
    ],
)
def test_what_cannot_be_packed_is_refused(tag, weight, group, message):
    with pytest.raises(ValueError, match=message):
        pack(tag, weight, group)


def test_unpack_refuses_what_cannot_hold_the_weight():
    packed = pack("panel16.f32", np.ones((16, 4), np.float32))
    for tag, n, k in (("panel16.bf16", 16, 4), ("panel16.f32", 17, 4), ("panel16.f32", 16, 5)):
        with pytest.raises(ValueError, match="not"):
            unpack(tag, packed, n, k)


@pytest.mark.parametrize("n", [16, 40, 7])
def test_interleaved_gate_and_up_alternate_in_panels(n):
    rng = np.random.default_rng(n)
    for shape in ((n, 5), (n,)):
        gate, up = rng.standard_normal((2, *shape)).astype(ml_dtypes.bfloat16)
        both = interleave_gate_up(gate, up)
        panels = -(-n // 16)
        assert both.shape == (32 * panels, *shape[1:])
        halves = both.reshape(panels, 2, 16, *shape[1:]).swapaxes(0, 1).reshape(2, 16 * panels, *shape[1:])
        assert (halves[0, :n] == gate).all()
        assert (halves[1, :n] == up).all()
        assert not halves[:, n:].astype(np.float32).any()


def test_gate_and_up_must_agree():
    with pytest.raises(ValueError, match="differ"):
        interleave_gate_up(np.zeros((4, 4), np.float32), np.zeros((4, 5), np.float32))
