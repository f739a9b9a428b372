"""Ops of a plan as the CPU backend runs them, against their meaning."""

import ml_dtypes
import numpy as np
import pytest

from precast.errors import EngineError
from precast.plugins.activation.reference import KINDS, activation, gated_activation
from precast.plugins.layer_norm.reference import layer_norm
from precast.plugins.linear.layout import INT8_TAG
from precast.plugins.quantize.reference import quantize
from precast.plugins.softcap.reference import softcap
from tests.steps import Steps
from tests.unit.plans import Program

ROWS, COLUMNS = 50, 50  # no multiple of a vector, a panel or a tile
TOKENS = [(7 * i) % ROWS for i in range(70)]


@pytest.fixture
def table():
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_activations(tmp_path, table, kind, threads):
    p = Program(table)
    act = p.op("activation", (0,), COLUMNS, activation=kind)
    y = p.op("gated_activation", (act, 0), COLUMNS, activation=kind)
    want = gated_activation(kind, activation(kind, table), table)[TOKENS]
    np.testing.assert_allclose(p.run(tmp_path / "e", y, TOKENS, threads), want, rtol=1e-5, atol=1e-6)


def test_scale_add_and_softcap_write_over_their_input(tmp_path, table):
    p = Program(table)
    doubled = p.op("scale", (0,), COLUMNS, factor=2.0)
    halved = p.op("scale", (doubled,), COLUMNS, slot=doubled, factor=0.25)
    total = p.op("add", (0, halved), COLUMNS, slot=halved)
    y = p.op("softcap", (total,), COLUMNS, slot=total, cap=0.7)
    np.testing.assert_allclose(p.run(tmp_path / "e", y, TOKENS), softcap(1.5 * table, 0.7)[TOKENS], rtol=1e-6)


@pytest.mark.parametrize("vocab", [16, 50])
def test_elementwise_ops_behind_the_head_work_on_the_logits(tmp_path, vocab):
    table = np.random.default_rng(1).standard_normal((vocab, 24)).astype(np.float32)
    weight = np.zeros((64, 24), np.float32)
    weight[:vocab] = np.random.default_rng(2).standard_normal((vocab, 24))
    p = Program(table)
    panels = weight[: -(-vocab // 16) * 16].reshape(-1, 16, 24).transpose(0, 2, 1)
    head = p.weight("head", "panel16.f32", np.ascontiguousarray(panels))
    last = p.op("gather_rows", (0,), 24, rows="S")
    logits = p.op("linear", (last,), vocab, (head,), rows="S", n=vocab, k=24, has_bias=0, epilogue="none")
    scaled = p.op("scale", (logits,), vocab, rows="S", slot=logits, factor=0.5)
    y = p.op("softcap", (scaled,), vocab, rows="S", slot=logits, cap=3.0)
    tokens = [i % vocab for i in range(70)]
    want = softcap(0.5 * (table @ weight[:vocab].T), 3.0)[tokens]
    steps = Steps(p.engine(tmp_path / "e", y), 2)
    np.testing.assert_allclose(steps.logits(tokens), want, rtol=0, atol=1e-5)
    assert steps.logits(tokens, (1,) * 69).tobytes() == steps.logits(tokens).tobytes()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("has_gain", "has_bias"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_layer_norm_and_its_quantized_form(tmp_path, table, has_gain, has_bias, threads):
    gain, bias = np.random.default_rng(3).standard_normal((2, COLUMNS)).astype(np.float32)
    p = Program(table + 3)
    weights = ((p.vector("gain", gain),) if has_gain else ()) + ((p.vector("bias", bias),) if has_bias else ())
    attributes = {"epsilon": 1e-5, "has_gain": has_gain, "has_bias": has_bias}
    want = layer_norm(table + 3, gain if has_gain else None, bias if has_bias else None, 1e-5)[TOKENS]
    y = p.op("layer_norm", (0,), COLUMNS, weights, **attributes)
    np.testing.assert_allclose(p.run(tmp_path / "f32", y, TOKENS, threads), want, rtol=0, atol=1e-5)

    p = Program(table + 3)
    p.sections |= {"gain": ("vector.f32", gain), "bias": ("vector.f32", bias)}
    q = p.op("layer_norm", (0,), COLUMNS, weights, dtype="i8", **attributes)
    eye = np.zeros((64, 52), np.int8)
    eye[:COLUMNS, :COLUMNS] = np.eye(COLUMNS)
    packed = eye.reshape(4, 16, 13, 4).transpose(0, 2, 1, 3)
    tag = INT8_TAG[str(p.attributes["isa"])]
    data = (packed.view(np.uint8) ^ np.uint8(128)) if tag == "panel16x4.u8" else packed
    p.weight("eye", tag, np.ascontiguousarray(data))
    p.vector("scale", np.ones(64))
    y = p.op("linear", (q,), COLUMNS, ("eye", "scale"), n=COLUMNS, k=COLUMNS, has_bias=0, epilogue="none")
    quantized, scale = quantize(want, 0)
    got = p.run(tmp_path / "i8", y, TOKENS, threads)
    assert np.abs(got - quantized * scale).max() <= 1.01 * scale.max()  # ties may go either way
    assert (np.abs(got - quantized * scale) < 1e-4).mean() > 0.99


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_embed_scales_its_row_and_adds_the_positions(tmp_path, table, dtype):
    positions = np.random.default_rng(4).standard_normal((100, COLUMNS)).astype(np.float32)
    positions = positions if dtype == "f32" else positions.astype(ml_dtypes.bfloat16)
    p = Program(table, max_seq_len=100)
    p.weight("positions", f"rows.{dtype}", positions)
    y = p.op("embed", (), COLUMNS, ("table", "positions"), scale=7.5, learned_positions=1)
    want = table[TOKENS] * np.float32(7.5) + positions[: len(TOKENS)].astype(np.float32)
    steps = Steps(p.engine(tmp_path / "e", y))
    assert (steps.logits(TOKENS) == want).all()
    assert (steps.logits(TOKENS, (1, 30, 2)) == want).all()


BAD = {
    "no positions": (("table",), {"scale": 1.0, "learned_positions": 1}, "1 weights instead of 2"),
    "few positions": (("table", "short"), {"scale": 1.0, "learned_positions": 1}, "fewer positions"),
    "odd positions": (("table", "odd"), {"scale": 1.0, "learned_positions": 1}, "no table of rows of 50"),
    "scale": (("table",), {"scale": 1e39, "learned_positions": 0}, "scale is beyond f32"),
    "no scale": (("table",), {"learned_positions": 0}, "scale is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_embed_that_does_not_fit_is_refused(tmp_path, table, name):
    weights, attributes, match = BAD[name]
    p = Program(table)
    p.weight("short", "rows.f32", np.zeros((2047, COLUMNS), np.float32))
    p.weight("odd", "rows.f32", np.zeros(5001, np.float32))
    y = p.op("embed", (), COLUMNS, weights, **attributes)
    with pytest.raises(EngineError, match=match):
        Steps(p.engine(tmp_path / "e", y))


OPS = {
    "softcap 0": ("softcap", (0,), {"cap": 0.0}, "cap is not positive"),
    "softcap −1": ("softcap", (0,), {"cap": -1.0}, "cap is not positive"),
    "softcap inf": ("softcap", (0,), {"cap": float("inf")}, "cap is not a finite number"),
    "scale": ("scale", (0,), {"factor": 1e39}, "factor is beyond f32"),
    "one summand": ("add", (0,), {}, "1 inputs instead of 2"),
    "unknown activation": ("activation", (0,), {"activation": "softsign"}, "no activation function softsign"),
    "gain that is not there": ("layer_norm", (0,), {"epsilon": 1e-5, "has_gain": 1, "has_bias": 0}, "0 weights"),
    "has_gain 2": ("layer_norm", (0,), {"epsilon": 1e-5, "has_gain": 2, "has_bias": 0}, "has_gain is 2"),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_that_does_not_fit_is_refused(tmp_path, table, name):
    kernel, inputs, attributes, match = OPS[name]
    p = Program(table)
    y = p.op(kernel, inputs, COLUMNS, **attributes)
    with pytest.raises(EngineError, match=match):
        Steps(p.engine(tmp_path / "e", y))


def test_other_ops_do_not_write_over_their_input(tmp_path, table):
    p = Program(table)
    y = p.op("rms_norm", (0,), COLUMNS, slot=0, epsilon=1e-5)
    with pytest.raises(EngineError, match="writes over its input"):
        Steps(p.engine(tmp_path / "e", y))
