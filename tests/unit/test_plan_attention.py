"""rope_kv_append and paged_attention as the CPU backend runs them, against their meaning."""

import numpy as np
import pytest

from precast.errors import EngineError
from precast.plugins.paged_attention.reference import paged_attention
from precast.plugins.qk_norm.reference import clip, qk_norm
from precast.plugins.rope.reference import rope, rope_cos_sin
from tests.steps import Steps
from tests.unit.plans import Program

HEADS, KV_HEADS, SIZE = 6, 2, 12
VOCAB = HEADS * SIZE
APPEND = {"layer": 0, "rotary_dim": 0, "attention_factor": 1.0, "qk_norm": "none", "epsilon": 1e-5, "clip": 0.0}
ATTEND = {"layer": 0, "scale": 0.4, "window": 0, "softcap": 0.0, "alibi": 0}
FREQUENCIES = (100.0 ** -(np.arange(SIZE // 2) / (SIZE // 2))).astype(np.float32)
GAINS = {"rms_head": 1, "rms_full": None, "layer_head": None}  # heads that a gain covers; None: all

CASES = {
    "nothing": ({}, {}),
    "rope": ({"rotary_dim": SIZE}, {}),
    "partial rope": ({"rotary_dim": 4, "attention_factor": 1.25}, {}),
    "clip": ({"clip": 0.5}, {}),
    "rms_head": ({"qk_norm": "rms_head", "rotary_dim": SIZE}, {}),
    "rms_full": ({"qk_norm": "rms_full", "rotary_dim": 4}, {}),
    "layer_head": ({"qk_norm": "layer_head"}, {}),
    "window": ({"rotary_dim": SIZE}, {"window": 40}),
    "window of one": ({}, {"window": 1}),
    "window over a split": ({}, {"window": 270}),
    "softcap": ({}, {"softcap": 2.0}),
    "alibi": ({}, {"alibi": 1}),
    "all": ({"clip": 1.5, "qk_norm": "rms_head", "rotary_dim": 8}, {"window": 33, "softcap": 4.0, "alibi": 1}),
}


def gain_of(kind, heads, seed):
    covered = GAINS[kind] or heads
    return (1 + 0.3 * np.random.default_rng(seed).standard_normal(covered * SIZE)).astype(np.float32)


SLOPES = np.linspace(0.01, 0.3, HEADS).astype(np.float32)


def program(append, attend):
    table = (2 * np.random.default_rng(0).standard_normal((VOCAB, (HEADS + 2 * KV_HEADS) * SIZE))).astype(np.float32)
    p = Program(table, num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE)
    append, attend = APPEND | append, ATTEND | attend
    weights = ()
    if append["rotary_dim"]:
        weights += (p.vector("frequencies", FREQUENCIES[: append["rotary_dim"] // 2]),)
    if append["qk_norm"] != "none":
        weights += tuple(
            p.vector(name, gain_of(append["qk_norm"], heads, i))
            for i, (name, heads) in enumerate((("q_gain", HEADS), ("k_gain", KV_HEADS)))
        )
    q = p.op("rope_kv_append", (0,), HEADS * SIZE, weights, **append)
    slopes = (p.vector("slopes", SLOPES),) if attend["alibi"] else ()
    return p, p.op("paged_attention", (q,), HEADS * SIZE, slopes, **attend)


def expected(table, tokens, append, attend):
    append, attend = APPEND | append, ATTEND | attend
    x = table[tokens].reshape(len(tokens), -1, SIZE)
    if append["clip"]:
        x = clip(x, append["clip"])
    q, k, v = np.split(x, [HEADS, HEADS + KV_HEADS], axis=1)
    kind = append["qk_norm"]
    if kind != "none":
        q = qk_norm(kind, q, gain_of(kind, HEADS, 0), append["epsilon"])
        k = qk_norm(kind, k, gain_of(kind, KV_HEADS, 1), append["epsilon"])
    positions = np.arange(len(tokens))
    if rotary_dim := append["rotary_dim"]:
        cos, sin = rope_cos_sin(positions, FREQUENCIES[: rotary_dim // 2], append["attention_factor"])
        q, k = rope(q, cos, sin, rotary_dim), rope(k, cos, sin, rotary_dim)
    slopes = SLOPES if attend["alibi"] else None
    y = paged_attention(q, k, v, positions, attend["scale"], attend["window"], attend["softcap"], slopes)
    return y.reshape(len(tokens), -1)


def tokens_of(count):
    return [int(t) for t in np.random.default_rng(1).integers(0, VOCAB, count)]


@pytest.mark.parametrize("name", CASES)
def test_attention_of_a_plan(tmp_path, name):
    p, y = program(*CASES[name])
    tokens = tokens_of(600)
    want = expected(p.table, tokens, *CASES[name])
    engine = p.engine(tmp_path / "e", y)
    whole = Steps(engine).logits(tokens)
    np.testing.assert_allclose(whole, want, rtol=0, atol=3e-5 * np.abs(want).max())
    for threads, chunks in ((1, (1, 30, 2, 255, 1)), (3, ()), (3, (400, 190, 9)), (4, (597, 1, 1))):
        assert Steps(engine, threads).logits(tokens, chunks).tobytes() == whole.tobytes(), (threads, chunks)


def test_layers_may_rotate_differently(tmp_path):
    """As Gemma 3's local and global layers, and layers without a rope."""
    tokens = tokens_of(50)
    table = np.random.default_rng(0).standard_normal((VOCAB, (HEADS + 2 * KV_HEADS) * SIZE)).astype(np.float32)
    ways = [(SIZE, 1.0), (4, 1.5), (0, 1.0), (SIZE, 1.0)]
    p = Program(table, num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE, num_layers=len(ways))
    total, want = None, np.zeros((50, VOCAB), np.float32)
    for layer, (rotary_dim, factor) in enumerate(ways):
        weights = (p.vector(f"frequencies {rotary_dim}", FREQUENCIES[: rotary_dim // 2]),) if rotary_dim else ()
        append = {"rotary_dim": rotary_dim, "attention_factor": factor}
        q = p.op("rope_kv_append", (0,), VOCAB, weights, **(APPEND | append | {"layer": layer}))
        y = p.op("paged_attention", (q,), VOCAB, **(ATTEND | {"layer": layer}))
        total = y if total is None else p.op("add", (total, y), VOCAB)
        want += expected(table, tokens, append, {})
    np.testing.assert_allclose(p.run(tmp_path / "e", total, tokens, 2), want, rtol=0, atol=1e-4)


BAD_APPEND = {
    "odd rotary_dim": ({"rotary_dim": 3}, "rotary_dim is odd"),
    "rotary_dim beyond the head": ({"rotary_dim": 14}, "rotary_dim is 14, outside 0 … 12"),
    "negative clip": ({"clip": -1.0}, "clip is negative"),
    "clip beyond f32": ({"clip": 1e39}, "clip is beyond f32"),
    "unknown norm": ({"qk_norm": "rms_tail"}, "unknown qk_norm rms_tail"),
    "gains that are not there": ({"qk_norm": "rms_full"}, "0 weights instead of 2"),
    "negative epsilon": ({"qk_norm": "rms_head", "epsilon": -1.0}, "epsilon is negative"),
}


@pytest.mark.parametrize("name", BAD_APPEND)
def test_an_append_that_does_not_fit_is_refused(tmp_path, name):
    append, match = BAD_APPEND[name]
    p, y = program({}, {})
    at = next(i for i, op in enumerate(p.ops) if op.kernel == "rope_kv_append")
    weights = (p.vector("a", np.ones(SIZE)),) * 2 if "epsilon" in append else ()
    p.ops[at] = type(p.ops[at])("rope_kv_append", (0,), p.ops[at].outputs, weights, APPEND | append)
    with pytest.raises(EngineError, match=match):
        Steps(p.engine(tmp_path / "e", y))


BAD_ATTEND = {
    "negative window": ({"window": -1}, "window is -1, outside"),
    "huge window": ({"window": 1 << 31}, "window is 2147483648, outside"),
    "negative softcap": ({"softcap": -1.0}, "softcap is negative"),
    "slopes that are not there": ({"alibi": 1}, "0 weights instead of 1"),
    "no window": ({"window": None}, "window is missing"),
}


@pytest.mark.parametrize("name", BAD_ATTEND)
def test_an_attention_that_does_not_fit_is_refused(tmp_path, name):
    attend, match = BAD_ATTEND[name]
    p, y = program({}, {})
    attributes = {k: v for k, v in (ATTEND | attend).items() if v is not None}
    p.ops[y] = type(p.ops[y])("paged_attention", p.ops[y].inputs, (y,), (), attributes)
    with pytest.raises(EngineError, match=match):
        Steps(p.engine(tmp_path / "e", y))


@pytest.mark.parametrize("window", [1 << 30, 2048])
def test_a_window_longer_than_the_sequence_changes_nothing(tmp_path, window):
    tokens = tokens_of(300)
    p, y = program({}, {})
    whole = p.run(tmp_path / "full", y, tokens)
    p, y = program({}, {"window": window})
    assert p.run(tmp_path / "window", y, tokens).tobytes() == whole.tobytes()
