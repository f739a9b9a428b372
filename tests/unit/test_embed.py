"""Gathering embeddings from packed tables."""

import numpy as np
import pytest

from precast._native import kernels
from precast.plugins.embed.reference import embed
from tests.unit.linear_calls import BF16, PackedLinear, random_weight


@pytest.mark.parametrize("kind", ["i8", "bf16", "f32"])
@pytest.mark.parametrize(("n", "k"), [(20, 40), (50, 576), (17, 101)])
def test_gather_is_embed_of_the_unpacked_table(level, kind, n, k):
    table, scale = random_weight(np.random.default_rng(1), kind, n, k)
    packed = PackedLinear(level, table, scale)
    floats = table.astype(np.float32) * scale[:, None] if kind == "i8" else table
    for channel in range(n):
        y = np.full(packed.k, 7, np.float32)
        if kind == "i8":
            kernels.gather_i8(level, packed.weight, packed.scale, channel, y)
        elif kind == "bf16":
            kernels.gather_bf16(level, packed.weight.view(np.uint16), channel, y)
        else:
            kernels.gather_f32(level, packed.weight, channel, y)
        assert (y[:k] == embed([channel], floats)[0]).all()
        assert not y[k:].any()


def test_embed_refuses_ids_outside_the_table():
    table = np.ones((4, 3), BF16)
    assert embed([0, 3], table).dtype == np.float32
    assert embed([], table).shape == (0, 3)
    for ids in ([4], [-1]):
        with pytest.raises(IndexError, match="0 … 3"):
            embed(ids, table)
