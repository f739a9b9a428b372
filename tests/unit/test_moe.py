"""Mixtures of experts as the CPU backend runs them, against their meaning."""

import ml_dtypes
import numpy as np
import pytest

from precast._native import kernels
from precast.errors import EngineError
from precast.plugins.activation.reference import gated_activation
from precast.plugins.linear import reference as linear_reference
from precast.plugins.linear.layout import INT8_TAG, interleave_gate_up, pack
from precast.plugins.moe.reference import moe, route
from tests.steps import Sequence, Steps
from tests.unit.linear_calls import random_weight
from tests.unit.plans import Program

HIDDEN, SIZE, SHARED = 50, 36, 52
KINDS = {"f32": ("f32", 0), "bf16": ("bf16", 0), "int8": ("i8", 0), "int8 groups": ("i8", 32)}


def run_route(level, logits, top_k, normalize):
    ids, weights = np.full((len(logits), top_k), -1, np.int32), np.full((len(logits), top_k), np.nan, np.float32)
    for row, i, w in zip(logits, ids, weights, strict=True):
        kernels.moe_route(level, row, normalize, i, w)
    return ids, weights


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (2, 1), (8, 2), (60, 4), (64, 8), (128, 8), (9, 9)])
def test_routing_means_what_the_reference_says(level, experts, top_k, normalize):
    logits = (3 * np.random.default_rng(experts).standard_normal((50, experts))).astype(np.float32)
    logits[1] = 0
    logits[2] = 1e30 * logits[3]
    ids, weights = run_route(level, logits, top_k, normalize)
    want_ids, want = route(logits, top_k, normalize)
    assert (ids == want_ids).all()
    np.testing.assert_allclose(weights, want, rtol=3e-6, atol=1e-37)


def test_equal_experts_go_by_the_lower_id(level):
    logits = np.array([[1, 3, 3, 0, 3, 2], [2, 2, 2, 2, 2, 2], [0, 1, 0, 1, 0, 0]], np.float32)
    ids, weights = run_route(level, logits, 3, True)
    assert ids.tolist() == [[1, 2, 4], [0, 1, 2], [0, 1, 3]]
    assert weights[0, 0] == weights[0, 1] == weights[0, 2]


def test_routing_of_broken_rows_is_in_bounds_and_broken(level):
    nan, inf = np.nan, np.inf
    rows = np.array([[nan] * 4, [1, nan, 2, 3], [inf, 0, inf, 1], [-inf] * 4, [-inf, 1, -inf, -inf]], np.float32)
    ids, weights = run_route(level, rows, 3, True)
    assert (np.diff(ids, axis=1) > 0).all()
    assert (ids >= 0).all() and (ids < 4).all()  # noqa: PT018
    assert np.isnan(weights[:4]).any(axis=1).all()
    assert weights[4].tolist() == [0, 1, 0]


def test_sigmoid(level):
    x = np.concatenate([np.linspace(-30, 30, 999), [np.inf, -np.inf, np.nan, -1e30, 1e30]]).astype(np.float32)
    y = np.empty_like(x)
    kernels.sigmoid(level, x, y)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=1e-6, atol=1e-37)


class Layer:
    """Random experts of a kind, packed for this machine's level, and what they compute."""

    def __init__(self, kind, num_experts=8, shared=False, gate=False, seed=0):
        rng = np.random.default_rng(seed)
        self.kind, self.group = KINDS[kind]
        self.level = kernels.isa_level()
        self.router = (3 * rng.standard_normal((num_experts, HIDDEN)) / np.sqrt(HIDDEN)).astype(np.float32)
        self.experts = [self.mlp(rng, SIZE) for _ in range(num_experts)]
        self.shared = self.mlp(rng, SHARED) if shared else None
        self.gate = rng.standard_normal((1, HIDDEN)).astype(np.float32) if gate else None

    def mlp(self, rng, size):
        return [random_weight(rng, self.kind, n, k) for n, k in ((size, HIDDEN), (size, HIDDEN), (HIDDEN, size))]

    def product(self, weight, x):
        w, scale = weight
        if self.kind == "i8":
            return linear_reference.linear_int8(x, w, scale, self.group)
        if (self.level, self.kind) == ("avx512", "bf16"):  # its dot product takes bf16 activations
            x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        return linear_reference.linear(x, w)

    def expert(self, mlp):
        fc, gate, proj = mlp
        return lambda x: self.product(proj, gated_activation("silu", self.product(fc, x), self.product(gate, x)))

    def expected(self, x, top_k, normalize):
        shared = self.expert(self.shared) if self.shared else None
        gate = x @ self.gate.T if self.gate is not None else None
        return moe(x, x @ self.router.T, [self.expert(m) for m in self.experts], top_k, normalize, shared, gate)

    def add_to(self, p, top_k, normalize):
        tag = {"f32": "panel16.f32", "bf16": "panel16.bf16", "i8": INT8_TAG[self.level]}[self.kind]

        def padded(scale):
            return np.pad(scale, (0, -len(scale) % 16))

        def stack(name, weights, scales):
            names = [p.weight(name, tag, np.stack([pack(tag, w, self.group) for w in weights]))]
            if self.kind == "i8":
                names.append(p.vector(name + ".scale", np.concatenate([padded(s) for s in scales])))
            return names

        names = [p.weight("router", "panel16.f32", pack("panel16.f32", self.router))]
        for name, mlps in (("experts", self.experts), ("shared", [self.shared] if self.shared else [])):
            if not mlps:
                continue
            both = [(interleave_gate_up(fc[0], gate[0]), fc[1], gate[1]) for fc, gate, _ in mlps]
            scales = [interleave_gate_up(a, b) for _, a, b in both] if self.kind == "i8" else []
            names += stack(name + ".gate_up", [w for w, _, _ in both], scales)
            names += stack(name + ".proj", [m[2][0] for m in mlps], [m[2][1] for m in mlps])
        if self.gate is not None:
            names.append(p.weight("gate", "panel16.f32", pack("panel16.f32", self.gate)))
        return p.op("moe", (0,), HIDDEN, tuple(names), **self.attributes(top_k, normalize))

    def attributes(self, top_k, normalize):
        return {
            "num_experts": len(self.experts),
            "top_k": top_k,
            "norm_topk_prob": int(normalize),
            "intermediate_size": SIZE,
            "shared_intermediate_size": SHARED if self.shared else 0,
            "shared_gate": int(self.gate is not None),
            "activation": "silu",
            "activation_group_size": self.group,
        }


TABLE = np.random.default_rng(7).standard_normal((HIDDEN, HIDDEN)).astype(np.float32)
TOKENS = [int(t) for t in np.random.default_rng(8).integers(0, HIDDEN, 200)]


def close(got, want, kind):
    # int8: a value that rounds the other way moves by one step of 127
    assert np.abs(got - want).max() <= (3e-2 if kind.startswith("int8") else 2e-5) * np.abs(want).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shared", "gate"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("experts", "top_k", "normalize"), [(8, 2, True), (20, 5, False), (3, 3, False), (1, 1, True)])
def test_moe_means_what_the_reference_says(tmp_path, kind, shared, gate, experts, top_k, normalize):
    layer = Layer(kind, experts, shared, gate)
    p = Program(TABLE)
    y = layer.add_to(p, top_k, normalize)
    want = layer.expected(TABLE, top_k, normalize)[TOKENS]
    got = p.run(tmp_path / "e", y, TOKENS, 2)
    close(got, want, kind)
    if kind.startswith("int8"):
        assert np.median(np.abs(got - want)) <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_row_depend_on_the_row_alone(tmp_path, kind):
    layer = Layer(kind, 8, True, True)
    p = Program(TABLE)
    engine = p.engine(tmp_path / "e", layer.add_to(p, 2, True))
    whole = Steps(engine).logits(TOKENS)
    for threads in (1, 2, 5):
        for chunks in ((), (1,) * 199, (3, 50, 7), (120,)):
            assert Steps(engine, threads).logits(TOKENS, chunks).tobytes() == whole.tobytes(), (threads, chunks)
    steps = Steps(engine, 2)
    for token in (0, 17, 49):  # the same row, alone and among others that go elsewhere
        alone = steps.step([(Sequence(), [token])])
        company = steps.step([(Sequence(), [3, token, 5] * 20), (Sequence(), [token])])
        assert alone[0].tobytes() == company[1].tobytes() == company[-1].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_row_breaks_itself_only(tmp_path, kind):
    layer = Layer(kind, 8, True, True)
    calm_program = Program(TABLE)
    calm = calm_program.run(tmp_path / "calm", layer.add_to(calm_program, 2, True), TOKENS)
    table = TABLE.copy()
    table[5, 3], table[9, 0] = np.nan, np.inf
    p = Program(table)
    got = p.run(tmp_path / "e", layer.add_to(p, 2, True), TOKENS)
    broken = np.isin(TOKENS, [5, 9])
    assert np.isnan(got[broken]).all()
    assert got[~broken].tobytes() == calm[~broken].tobytes()


BAD = {
    "no experts": ({"num_experts": 0}, "num_experts is 0, outside"),
    "top_k 0": ({"top_k": 0}, "top_k is 0, outside 1 … 8"),
    "top_k beyond the experts": ({"top_k": 9}, "top_k is 9, outside 1 … 8"),
    "more experts than stored": ({"num_experts": 9}, r"experts\.gate_up"),
    "other size": ({"intermediate_size": 60}, "experts.gate_up"),
    "huge size": ({"intermediate_size": 1 << 26}, "experts.gate_up"),
    "other shared size": ({"shared_intermediate_size": 0}, "a gate and no shared expert"),
    "no gate": ({"shared_gate": 0}, "weights instead of"),
    "group": ({"activation_group_size": 6}, "no multiple of 4"),
    "negative group": ({"activation_group_size": -4}, "activation_group_size is -4"),
    "unknown activation": ({"activation": "softsign"}, "no activation function softsign"),
    "no activation": ({"activation": None}, "activation is missing"),
}


@pytest.mark.parametrize("kind", ["f32", "int8"])
@pytest.mark.parametrize("name", BAD)
def test_a_moe_that_does_not_fit_is_refused(tmp_path, kind, name):
    changes, match = BAD[name]
    layer = Layer(kind, 8, True, True)
    p = Program(TABLE)
    y = layer.add_to(p, 2, True)
    attributes = {k: v for k, v in (layer.attributes(2, True) | changes).items() if v is not None}
    p.ops[y] = type(p.ops[y])("moe", (0,), (y,), p.ops[y].weights, attributes)
    with pytest.raises(EngineError, match=match):
        Steps(p.engine(tmp_path / "e", y))


def test_missing_and_swapped_weights_are_refused(tmp_path):
    layer = Layer("int8", 8, True, True)
    p = Program(TABLE)
    y = layer.add_to(p, 2, True)
    names = p.ops[y].weights
    for weights in (names[:0], *(names[:i] for i in range(1, len(names))), names[1:], names[::-1]):
        p.ops[y] = type(p.ops[y])("moe", (0,), (y,), weights, layer.attributes(2, True))
        with pytest.raises(EngineError, match=r"weight|scale|section"):
            Steps(p.engine(tmp_path / "e", y))
        (tmp_path / "e").unlink()
        p.ops, p.buffers = p.ops[: y + 1], p.buffers[: y + 1]
