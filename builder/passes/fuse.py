"""Passes that join neighbouring ops which one kernel runs in one sweep."""

from __future__ import annotations

from dataclasses import replace

from precast.builder.graph import Graph, Op, Value
from precast.builder.plan import Attribute
from precast.checkpoint import ModelConfig, is_quantized


def _makers(graph: Graph) -> dict[Value, Op]:
    return {value: op for op in graph.ops for value in op.outputs}


def merge_gate_up(graph: Graph, config: ModelConfig) -> Graph:
    """linear(fc), linear(gate), gated_activation → one linear over both, whose epilogue is activation(gate)·up.

    One sweep over the activations instead of two, and the two wide intermediate values never reach memory. Left alone
    when one is quantized and the other is not: one packed weight has one dtype.
    """
    makers, uses = _makers(graph), graph.uses()
    gone: set[int] = set()
    merged: dict[int, Op] = {}
    for op in graph.ops:
        if op.kind != "gated_activation":
            continue
        gate, up = (makers[v] for v in op.inputs)
        alike = gate.kind == up.kind == "linear" and (gate.inputs, gate.attributes) == (up.inputs, up.attributes)
        if alike:
            alike = is_quantized(config, gate.modules[0]) == is_quantized(config, up.modules[0])
        if not alike or any(uses[v] != 1 for v in op.inputs):
            continue
        n = 2 * op.outputs[0].columns
        attributes = gate.attributes | {"n": n, "epilogue": "gated", "activation": op.attributes["activation"]}
        merged[id(op)] = Op("linear", gate.inputs, op.outputs, gate.modules + up.modules, attributes)
        gone |= {id(gate), id(up)}
    return Graph(tuple(merged.get(id(op), op) for op in graph.ops if id(op) not in gone))


def fuse_add(graph: Graph) -> Graph:
    """add(x, linear(y)) → linear(y, x) with the residual x added in the epilogue."""
    makers, uses = _makers(graph), graph.uses()
    fused: dict[int, Op] = {}
    gone: set[int] = set()
    for op in graph.ops:
        if op.kind != "add":
            continue
        residual, y = op.inputs
        maker = makers[y]
        if maker.kind == "linear" and maker.attributes["epilogue"] == "none" and uses[y] == 1:
            attributes = maker.attributes | {"epilogue": "add"}
            fused[id(op)] = replace(maker, inputs=(*maker.inputs, residual), outputs=op.outputs, attributes=attributes)
            gone.add(id(maker))
    return Graph(tuple(fused.get(id(op), op) for op in graph.ops if id(op) not in gone))


# What may stand between the q/k/v projection and the pages, in order.
BEFORE_APPEND = ("clip", "qk_norm", "rope")


def fuse_rope_kv_append(graph: Graph) -> Graph:
    """kv_append(rope(qk_norm(clip(qkv)))), or with less of that → rope_kv_append(qkv): one sweep from the projection to
    the pages. Its attributes say what it does: `rope` none, global or local, `qk_norm` (none: not), `clip` (0: not)."""
    makers, uses = _makers(graph), graph.uses()
    gone: set[int] = set()
    fused: dict[int, Op] = {}
    for op in graph.ops:
        if op.kind != "kv_append":
            continue
        attributes: dict[str, Attribute] = {"rope": "none", "qk_norm": "none", "epsilon": 0.0, "clip": 0.0}
        modules: tuple[str, ...] = ()
        x = op.inputs[0]
        for kind in reversed(BEFORE_APPEND):
            maker = makers[x]
            if maker.kind == kind and uses[x] == 1:
                attributes |= maker.attributes
                modules = maker.modules or modules
                gone.add(id(maker))
                x = maker.inputs[0]
        fused[id(op)] = replace(
            op, kind="rope_kv_append", inputs=(x,), modules=modules, attributes=attributes | op.attributes
        )
    return Graph(tuple(fused.get(id(op), op) for op in graph.ops if id(op) not in gone))
