"""Each pass on its own: what it joins, what it leaves alone, and that the numbers stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.builder.graph import Graph, Op, Value
from precast.builder.interpreter import Interpreter
from precast.builder.models.decoder import decoder
from precast.builder.passes import lower
from precast.builder.passes.fuse import fuse_add, fuse_rope_kv_append, merge_gate_up
from precast.builder.passes.memory import plan_memory
from precast.builder.passes.quantize import fuse_norm_quantize, insert_quantize
from precast.builder.weights import Checkpoint
from precast.checkpoint import ModelConfig, Quantization
from precast.quantize import ConvertOptions, convert
from tests.tiny import random_tokens, tiny_llama
from tests.unit.test_graph import config

INT8 = config(quantization=Quantization("W8A8_DYNAMIC", activation_group_size=4))


def kinds(graph: Graph) -> Counter[str]:
    return Counter(op.kind for op in graph.ops)


@pytest.fixture(scope="module", params=["none", "int8"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("passes")
    tiny_llama(folder / "hf", attention_bias=True, mlp_bias=True, intermediate_size=88)
    convert(folder / "hf", folder / "ckpt", ConvertOptions(request.param))
    return Checkpoint(folder / "ckpt")


def quantized(graph: Graph, model: ModelConfig) -> Graph:
    return fuse_norm_quantize(insert_quantize(graph, model))


PASSES: dict[str, Callable[[Graph, ModelConfig], Graph]] = {
    "merge_gate_up": merge_gate_up,
    "fuse_add": lambda graph, _: fuse_add(graph),
    "fuse_rope_kv_append": lambda graph, _: fuse_rope_kv_append(graph),
    "insert_quantize": insert_quantize,
    "fuse_norm_quantize": quantized,
    "all": lower,
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_the_numbers(name: str, checkpoint: Checkpoint) -> None:
    plain = decoder(checkpoint.config)
    passed = PASSES[name](plain, checkpoint.config)
    tokens = random_tokens(20)
    before = Interpreter(plain, checkpoint, 2048)
    after = Interpreter(passed, checkpoint, 2048)
    for part in (tokens[:19], tokens[19:]):
        np.testing.assert_allclose(after.run(part), before.run(part), rtol=1e-5, atol=1e-5)


def test_gate_and_up_become_one_linear_with_the_activation_in_its_epilogue() -> None:
    graph = merge_gate_up(decoder(config()), config())
    merged = [op for op in graph.ops if op.attributes.get("epilogue") == "gated"]
    assert [op.modules for op in merged] == [
        (f"transformer.layers.{i}.mlp.fc", f"transformer.layers.{i}.mlp.gate") for i in range(2)
    ]
    assert [op.attributes["n"] for op in merged] == [80, 80]
    assert kinds(graph)["gated_activation"] == 0


def test_a_quantized_gate_and_an_unquantized_up_stay_two_linears() -> None:
    half = config(quantization=Quantization("W8A8_DYNAMIC", exclude_modules=("*.1.mlp.gate",)))
    graph = merge_gate_up(decoder(half), half)
    assert kinds(graph)["gated_activation"] == 1


def test_residuals_move_into_epilogues() -> None:
    graph = fuse_add(decoder(config()))
    added = [op for op in graph.ops if op.attributes.get("epilogue") == "add"]
    assert [op.modules[0].rsplit(".", 1)[1] for op in added] == ["dense", "proj"] * 2
    assert kinds(graph)["add"] == 0


def test_a_linear_that_others_read_keeps_its_own_value() -> None:
    x, y, z, w = (Value(name, "T", 8) for name in "xyzw")
    attributes = {"n": 8, "k": 8, "has_bias": 0, "epilogue": "none"}
    graph = Graph(
        (
            Op("embed", (), (x,), ("e",)),
            Op("linear", (x,), (y,), ("m",), attributes),  # type: ignore[arg-type]
            Op("add", (x, y), (z,)),
            Op("add", (z, y), (w,)),
        )
    )
    assert fuse_add(graph) == graph


def test_rope_and_kv_append_become_one_op() -> None:
    graph = fuse_rope_kv_append(decoder(config()))
    assert (kinds(graph)["rope"], kinds(graph)["kv_append"], kinds(graph)["rope_kv_append"]) == (0, 0, 2)


def test_linears_that_share_an_input_share_its_quantization() -> None:
    graph = insert_quantize(decoder(INT8), INT8)
    # A layer quantizes the inputs of qkv, of dense, of fc and gate together, and of proj; the head one more.
    assert kinds(graph)["quantize"] == 4 * 2 + 1
    assert all(v.group == 4 for op in graph.ops for v in op.outputs if v.dtype == "i8")


def test_excluded_linears_read_f32() -> None:
    half = config(quantization=Quantization("W8A8_DYNAMIC", exclude_modules=("lm_head", "*.attention.*")))
    graph = insert_quantize(decoder(half), half)
    read = {op.modules[0].rsplit(".", 1)[-1]: op.inputs[0].dtype for op in graph.ops if op.kind == "linear"}
    assert read == {"qkv": "f32", "dense": "f32", "fc": "i8", "gate": "i8", "proj": "i8", "lm_head": "f32"}


def test_norms_quantize_what_only_int8_linears_read() -> None:
    graph = lower(decoder(INT8), INT8)
    assert {op.outputs[0].dtype for op in graph.ops if op.kind == "rms_norm"} == {"i8"}
    assert kinds(graph)["quantize"] == 2 * 2  # before dense and proj; the other linears read norms


def test_a_norm_that_an_f32_linear_reads_too_stays_f32() -> None:
    half = config(quantization=Quantization("W8A8_DYNAMIC", exclude_modules=("*.mlp.gate",)))
    graph = lower(decoder(half), half)
    norms = {op.outputs[0].name: op.outputs[0].dtype for op in graph.ops if op.kind == "rms_norm"}
    assert norms["transformer.layers.0.post_layernorm"] == "f32"
    assert norms["transformer.layers.0.input_layernorm.int8"] == "i8"


@pytest.mark.parametrize("model", [config(), INT8], ids=["float32", "int8"])
def test_the_arena_does_not_grow_with_the_layers(model: ModelConfig) -> None:
    few, many = (lower(decoder(replace(model, num_hidden_layers=n)), model) for n in (2, 12))
    assert len(set(plan_memory(many).values())) == len(set(plan_memory(few).values()))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random programs of norms and sums over values of two widths."""
    first = {8: Value("x8", "T", 8), 16: Value("x16", "T", 16)}
    ops = [Op("embed", (), (value,), ("m",)) for value in first.values()]
    values = list(first.values())
    for i in range(draw(st.integers(1, 20))):
        a = draw(st.sampled_from(values))
        b = draw(st.sampled_from([v for v in values if v.columns == a.columns]))
        out = Value(f"v{i}", "T", a.columns)
        binary = draw(st.booleans())
        ops.append(Op("add", (a, b), (out,)) if binary else Op("rms_norm", (a,), (out,)))
        values.append(out)
    return Graph(tuple(ops))


@given(graphs())
def test_values_that_share_a_slot_never_live_at_the_same_time(graph: Graph) -> None:
    slots = plan_memory(graph)
    holds: dict[int, Value] = {}
    for op in graph.ops:
        for value in op.inputs:
            assert holds[slots[value]] == value, "a value was overwritten before its last reader"
            assert slots[value] not in [slots[out] for out in op.outputs], "an op writes over its input"
        for value in op.outputs:
            holds[slots[value]] = value
    logits = graph.ops[-1].outputs[0]
    assert holds[slots[logits]] == logits


def test_passes_leave_a_graph_of_their_own_alone() -> None:
    once = lower(decoder(INT8), INT8)
    assert fuse_add(once) == once
    assert fuse_rope_kv_append(once) == once
    assert merge_gate_up(once, INT8) == once
