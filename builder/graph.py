"""The graph: a small typed SSA form of language-model-sized ops (docs/lifecycle.md, "build").

A step is packed: T tokens of B sequences, prefill chunks and decode tokens mixed; S of the rows want logits. Values are
matrices [T or S, columns]. Weights are named by checkpoint module; what an op needs of a module (weight, scale, bias)
follows from the checkpoint's config.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from precast.builder.plan import Attribute

Rows = Literal["T", "S"]


@dataclass(frozen=True)
class Value:
    """A value of the step, defined by exactly one op. dtype "f32", or "i8": quantized with one scale per `group`
    columns (0: per row)."""

    name: str
    rows: Rows
    columns: int
    dtype: Literal["f32", "i8"] = "f32"
    group: int = 0


@dataclass(frozen=True)
class Op:
    """One op. `modules`: the checkpoint modules whose tensors it reads, in the op's own order."""

    kind: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    modules: tuple[str, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict)


# kind → (inputs, outputs, modules) it takes; a tuple of counts where several are allowed.
SIGNATURES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "embed": ((0,), 1, (1,)),
    "rms_norm": ((1,), 1, (0, 1)),
    "linear": ((1, 2), 1, (1, 2)),
    "rope": ((1,), 1, (0,)),
    "kv_append": ((1,), 1, (0,)),
    "rope_kv_append": ((1,), 1, (0,)),
    "paged_attention": ((1,), 1, (0,)),
    "gated_activation": ((2,), 1, (0,)),
    "add": ((2,), 1, (0,)),
    "gather_rows": ((1,), 1, (0,)),
    "quantize": ((1,), 1, (0,)),
}


@dataclass(frozen=True)
class Graph:
    """Ops in execution order; the last one's output is the logits."""

    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown op, a wrong operand count, a value defined twice or used before."""
        defined: set[Value] = set()
        for op in self.ops:
            if op.kind not in SIGNATURES:
                raise ValueError(f"unknown op {op.kind!r}")
            inputs, outputs, modules = SIGNATURES[op.kind]
            counts = (len(op.inputs), len(op.outputs), len(op.modules))
            if counts[0] not in inputs or counts[1] != outputs or counts[2] not in modules:
                raise ValueError(f"op {op.kind} has {counts} inputs, outputs, modules")
            for value in op.inputs:
                if value not in defined:
                    raise ValueError(f"op {op.kind} uses {value.name} before it is defined")
            for value in op.outputs:
                if any(value.name == other.name for other in defined):
                    raise ValueError(f"value {value.name} is defined twice")
                defined.add(value)
            _check_shapes(op)

    def uses(self) -> Counter[Value]:
        """How often each value is read; the logits count as read once."""
        counts = Counter(value for op in self.ops for value in op.inputs)
        counts[self.ops[-1].outputs[0]] += 1
        return counts

    def modules(self) -> set[str]:
        """All checkpoint modules that are read."""
        return {module for op in self.ops for module in op.modules}


def _check_shapes(op: Op) -> None:
    def same(*values: Value) -> bool:
        return len({(v.rows, v.columns) for v in values}) == 1

    ok = True
    match op.kind:
        case "add":
            ok = same(*op.inputs, *op.outputs)
        case "gated_activation":
            ok = same(*op.inputs, *op.outputs)
        case "rms_norm" | "rope" | "quantize" | "paged_attention":
            ok = same(op.inputs[0], op.outputs[0])
        case "linear":
            n, k = op.attributes["n"], op.attributes["k"]
            columns = n // 2 if op.attributes["epilogue"] == "silu_mul" and isinstance(n, int) else n
            ok = op.inputs[0].columns == k and op.outputs[0].columns == columns
            ok = ok and all(same(v, op.outputs[0]) for v in op.inputs[1:])
        case "gather_rows":
            ok = (op.inputs[0].rows, op.outputs[0].rows) == ("T", "S") and op.inputs[0].columns == op.outputs[0].columns
    if not ok:
        raise ValueError(f"op {op.kind} with output {op.outputs[0].name} has operands of wrong shapes")
