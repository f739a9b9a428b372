"""Passes that put activation quantization before the linears whose weights are int8."""

from __future__ import annotations

from dataclasses import replace

from precast.builder.graph import NORMS, Graph, Op, Value
from precast.checkpoint import ModelConfig, is_quantized


def insert_quantize(graph: Graph, config: ModelConfig) -> Graph:
    """Every int8 linear reads a quantized value; linears that share an input share its quantization."""
    group = config.quantization.activation_group_size
    made: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind == "linear" and is_quantized(config, op.modules[0]):
            x = op.inputs[0]
            if x not in made:
                made[x] = replace(x, name=x.name + ".int8", dtype="i8", group=group)
                ops.append(Op("quantize", (x,), (made[x],)))
            op = replace(op, inputs=(made[x], *op.inputs[1:]))
        ops.append(op)
    return Graph(tuple(ops))


def fuse_norm_quantize(graph: Graph) -> Graph:
    """quantize(norm(x)) → one op, when nobody else reads the norm."""
    uses = graph.uses()
    norms = {op.outputs[0]: op for op in graph.ops if op.kind in NORMS and uses[op.outputs[0]] == 1}
    fused = {op.inputs[0]: op for op in graph.ops if op.kind == "quantize" and op.inputs[0] in norms}
    ops = []
    for op in graph.ops:
        if op.kind in NORMS and op.outputs[0] in fused:
            op = replace(op, outputs=fused[op.outputs[0]].outputs)
        elif op.kind == "quantize" and op.inputs[0] in fused:
            continue
        ops.append(op)
    return Graph(tuple(ops))
