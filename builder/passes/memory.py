"""Memory planning: values that never live at the same time share a slot."""

from __future__ import annotations

from precast.builder.graph import Graph, Value


def plan_memory(graph: Graph) -> dict[Value, int]:
    """Value → slot, first fit by execution order. A value lives from the op that makes it through its last reader.

    Kernels read and write in parallel, so an op's outputs do not share a slot with its inputs; but scale and softcap
    write over an input that nobody else reads: behind the head, the logits are then all there is.
    """
    last_use: dict[Value, int] = {}
    for i, op in enumerate(graph.ops):
        for value in (*op.inputs, *op.outputs):
            last_use[value] = i
    last_use[graph.ops[-1].outputs[0]] = len(graph.ops)
    slots: dict[Value, int] = {}
    busy: dict[int, int] = {}  # slot → the op after which it is free
    for i, op in enumerate(graph.ops):
        if op.kind in ("scale", "softcap") and last_use[op.inputs[0]] == i:
            value, slot = op.outputs[0], slots[op.inputs[0]]
            slots[value], busy[slot] = slot, last_use[value]
            continue
        for value in op.outputs:
            free = [s for s, until in busy.items() if until < i]
            # A slot is as large as its largest value: prefer one that already held this shape, else a new one.
            like = [s for s in free if any(slots[v] == s and _shape(v) == _shape(value) for v in slots)]
            slot = (like or [len(busy)])[0]
            slots[value], busy[slot] = slot, last_use[value]
    return slots


def _shape(value: Value) -> tuple[str, int, str]:
    return value.rows, value.columns, value.dtype
