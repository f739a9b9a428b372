"""Paged attention of every ISA level against its meaning, and its bits against themselves."""

import numpy as np
import pytest

from precast._native import kernels
from precast.plugins.kv_append.reference import KV_DTYPES, LARGEST, empty_pages, kv_append, kv_round
from precast.plugins.paged_attention.reference import paged_attention, q_as_multiplied
from tests.unit.attention_calls import PAGE, SPLIT, Cache, tolerance

HEAD_SIZES = [40, 64, 80, 96, 128, 256, 576]
RATIOS = [1, 3, 4, 7, 9]


def case(level, dtype, head_size, heads, length, rows, seed=0, peak=4.0):
    """(cache of `length` tokens, q for its last `rows` rows, their first position, scale); scores are peaked."""
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, length, head_size)).astype(np.float32)
    q = (peak * rng.standard_normal((rows, heads, head_size))).astype(np.float32)
    return Cache(level, k, v, dtype), q, length - rows, head_size**-0.5


def reference(cache, q, first_position, scale, **more):
    positions = np.arange(first_position, first_position + len(q))
    q = q_as_multiplied(q, cache.dtype, cache.level)
    return paged_attention(q, cache.k[:, None], cache.v[:, None], positions, scale, **more)


def check(cache, q, first_position, scale, **more):
    """Attention of the kernels beside the reference."""
    got = cache.attend(q, first_position, scale, **more)
    want = reference(cache, q, first_position, scale, **more)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance(cache.level, cache.dtype, cache.v))


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("heads", RATIOS)
def test_attention_means_what_the_reference_says(level, dtype, head_size, heads):
    for length, rows in ((1, 1), (33, 33), (300, 1), (300, 40), (520, 5)):
        check(*case(level, dtype, head_size, heads, length, rows, seed=length))


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("head_size", [1, 7, 13, 33, 100, 257, 515])
def test_any_head_size_works(level, dtype, head_size):
    check(*case(level, dtype, head_size, 3, 70, 9))


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", range(1, 17))
def test_any_number_of_lines_works(level, dtype, heads):
    for rows in (1, 2, 3, 60):
        check(*case(level, dtype, 32, heads, 300, rows, seed=rows))


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(("head_size", "heads"), [(40, 1), (64, 3), (80, 7), (128, 4), (256, 9)])
def test_bits_of_a_row_depend_on_the_row_alone(level, dtype, head_size, heads):
    cache, q, at, scale = case(level, dtype, head_size, heads, 600, 90)
    whole = cache.attend(q, at, scale)
    for tile_rows in (1, 2, 3, 8, 31, 32, 64):
        assert cache.attend(q, at, scale, tile_rows).tobytes() == whole.tobytes(), tile_rows
    for rows in (1, 5, 17):
        assert cache.attend(q[-rows:], at + len(q) - rows, scale).tobytes() == whole[-rows:].tobytes()


MORE = {
    "window 1": {"window": 1},
    "window 5": {"window": 5},
    "window 32": {"window": 32},
    "window 100": {"window": 100},
    "window 300": {"window": 300},
    "window longer than all": {"window": 10_000},
    "softcap": {"softcap": 3.0},
    "alibi": {"slopes": np.array([0.5, 0.02, 0.0], np.float32)},
    "all": {"window": 70, "softcap": 5.0, "slopes": np.array([0.25, 0.03, 0.1], np.float32)},
}


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("name", MORE)
def test_windows_caps_and_slopes_mean_what_the_reference_says(level, dtype, name):
    for length, rows in ((1, 1), (33, 33), (300, 1), (300, 40), (600, 90), (850, 3)):
        cache, q, at, scale = case(level, dtype, 40, 3, length, rows, seed=length)
        check(cache, q, at, scale, **MORE[name])


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("name", MORE)
def test_bits_of_a_row_depend_on_the_row_alone_with_windows_caps_and_slopes(level, dtype, name):
    cache, q, at, scale = case(level, dtype, 64, 3, 600, 90)
    whole = cache.attend(q, at, scale, **MORE[name])
    for tile_rows in (1, 2, 3, 8, 31, 32, 64):
        assert cache.attend(q, at, scale, tile_rows, **MORE[name]).tobytes() == whole.tobytes(), tile_rows


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [1, 30, 32, 257, 300])
def test_tokens_before_the_window_do_not_matter(level, dtype, window):
    cache, q, at, scale = case(level, dtype, 64, 3, 600, 20)
    whole = cache.attend(q, at, scale, window=window)
    nothing = np.full(64, np.nan, np.float32)
    for position in range(at - window + 1):
        cache.append(position, nothing, nothing)
    assert cache.attend(q, at, scale, window=window).tobytes() == whole.tobytes()
    cache.append(at - window + 1, nothing, nothing)  # the first row's first position
    poisoned = cache.attend(q, at, scale, window=window)
    assert np.isnan(poisoned[0]).all()
    assert poisoned[1:].tobytes() == whole[1:].tobytes()


def test_a_split_before_the_window_is_empty(level):
    cache, q, at, scale = case(level, "bfloat16", 64, 2, SPLIT + 50, 6)
    partial = cache.partial(q, at, scale, 0, window=47).reshape(6, 2, -1)
    assert (partial[2:, :, 0] == -np.inf).all()  # rows at SPLIT + 46 … see nothing of it
    assert not partial[2:, :, 1:].any()
    assert (partial[:2, :, 1] >= 1).all()


def test_capped_scores_of_huge_queries(level):
    cache, q, at, scale = case(level, "float32", 64, 3, 300, 8, peak=1e30)
    want = reference(cache, q, at, scale, softcap=20.0)
    np.testing.assert_allclose(cache.attend(q, at, scale, softcap=20.0), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(("head_size", "heads"), [(40, 1), (64, 3), (64, 16), (33, 1)])
def test_tokens_behind_a_row_do_not_matter(level, dtype, head_size, heads):
    cache, q, at, scale = case(level, dtype, head_size, heads, 300, 50)
    whole = cache.attend(q, at, scale)
    nothing = np.full(head_size, np.nan, np.float32)
    for position in range(281, 300):
        cache.append(position, nothing, nothing)
    for tile_rows in (1, 3, 50):
        poisoned = cache.attend(q, at, scale, tile_rows)
        assert poisoned[:31].tobytes() == whole[:31].tobytes()
        assert np.isnan(poisoned[31:]).all()


def test_rows_that_see_nothing_of_a_split_are_empty(level):
    cache, q, at, scale = case(level, "bfloat16", 64, 2, SPLIT + 3, 6)
    partial = cache.partial(q, at, scale, 1).reshape(6, 2, -1)
    assert (partial[:3, :, 0] == -np.inf).all()
    assert not partial[:3, :, 1:].any()
    assert (partial[3:, :, 1] >= 1).all()


def test_merging_an_empty_split_changes_nothing(level):
    cache, q, at, scale = case(level, "float32", 64, 2, 40, 4)
    state = cache.partial(q, at, scale, 0)
    before = state.copy()
    empty = np.zeros_like(state)
    empty[:, 0] = -np.inf
    kernels.attention_merge(level, state, empty)
    assert state.tobytes() == before.tobytes()


def test_large_scores_neither_overflow_nor_vanish(level):
    cache, q, at, scale = case(level, "float32", 64, 3, 400, 8, peak=1000.0)
    want = reference(cache, q, at, scale)
    got = cache.attend(q, at, scale)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_broken_query_breaks_its_own_row_only(level, dtype, value):
    cache, q, at, scale = case(level, dtype, 64, 3, 300, 9)
    whole = cache.attend(q, at, scale)
    q[4, 1, 5] = value
    got = cache.attend(q, at, scale)
    assert np.isnan(got[4, 1]).all()
    got[4, 1] = whole[4, 1]
    assert got.tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("magnitude", [1.0, 1e-30, 1e-42, 1e30])
def test_kv_append_means_what_the_reference_says(level, dtype, magnitude):
    rng = np.random.default_rng(3)
    k, v = (magnitude * rng.standard_normal((2, PAGE + 5, 80)) * rng.choice([1, 1e-3], 80)).astype(np.float32)
    k[3], v[4] = 0, 0
    cache = Cache(level, k, v, dtype)
    expected = empty_pages(len(cache.blocks), 80, dtype)
    kv_append(expected, cache.table, 0, k, v, dtype)
    keys, values, scales = cache.pages()
    for position in range(len(k)):
        page, slot = cache.table[position // PAGE], position % PAGE
        assert keys[page, :, slot].tobytes() == expected[0][page, :, slot].tobytes()
        assert values[page, slot].tobytes() == expected[1][page, slot].tobytes()
        assert scales[page, :, slot].tobytes() == expected[2][page, :, slot].tobytes() or dtype not in LARGEST
    assert set(values[cache.table[1], 5:].tobytes()) == {0xFF}  # not written


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_broken_value_breaks_its_own_token_only(level, dtype, value):
    k, v = np.random.default_rng(3).standard_normal((2, 8, 40)).astype(np.float32)
    v[6, 7] = value
    q = np.ones((8, 1, 40), np.float32)
    got = Cache(level, k, v, dtype).attend(q, 0, 0.1)
    assert np.isfinite(got[:6]).all()
    assert np.isnan(got[6:]).all()


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.5 / 127), ("fp8", 2.0**-4)])
def test_scaled_values_are_close_to_what_was_written(dtype, bound):
    x = np.random.default_rng(4).standard_normal((50, 64)).astype(np.float32)
    error = np.abs(kv_round(x, dtype) - x)
    relative = error / (np.abs(x).max(axis=1, keepdims=True) if dtype == "int8" else np.maximum(np.abs(x), 0.05))
    assert 0 < relative.max() <= bound * 1.001


def test_wrong_arguments_are_value_errors(level):
    cache, q, at, scale = case(level, "bfloat16", 64, 2, 40, 4)
    out = np.empty((8, 66), np.float32)
    call = kernels.attention_partial
    calls = [
        lambda: call(level, "int4", q, cache.blocks, cache.table, at, scale, 0, out),
        lambda: call(level, "int8", q, cache.blocks, cache.table, at, scale, 0, out),
        lambda: call(level, cache.dtype, q, cache.blocks[:, :100].copy(), cache.table, at, scale, 0, out),
        lambda: call(level, cache.dtype, q, cache.blocks, cache.table[:1], at, scale, 0, out),
        lambda: call(level, cache.dtype, q, cache.blocks, cache.table + 100, at, scale, 0, out),
        lambda: call(level, cache.dtype, q, cache.blocks, cache.table, -1, scale, 0, out),
        lambda: call(level, cache.dtype, q, cache.blocks, cache.table, at, scale, -1, out),
        lambda: call(level, cache.dtype, q, cache.blocks, cache.table, at, scale, 0, out[:4]),
        lambda: call(level, cache.dtype, q[:0], cache.blocks, cache.table, at, scale, 0, out[:0]),
        lambda: call(level, cache.dtype, q, cache.blocks, cache.table, at, scale, 0, out, window=-1),
        lambda: call(level, cache.dtype, q, cache.blocks, cache.table, at, scale, 0, out, softcap=-1.0),
        lambda: call(
            level, cache.dtype, q, cache.blocks, cache.table, at, scale, 0, out, slopes=np.zeros(3, np.float32)
        ),
        lambda: kernels.attention_merge(level, out, out[:4]),
        lambda: kernels.attention_finish(level, out, np.empty((8, 65), np.float32)),
        lambda: kernels.kv_append(level, cache.dtype, cache.blocks, 0, 32, q[0, 0], q[0, 0]),
        lambda: kernels.kv_append(level, cache.dtype, cache.blocks, 9, 0, q[0, 0], q[0, 0]),
        lambda: kernels.kv_append(level, cache.dtype, cache.blocks, 0, 0, q[0, 0], q[0, 0, :5].copy()),
    ]
    for wrong in calls:
        with pytest.raises(ValueError, match=r"\w"):
            wrong()
