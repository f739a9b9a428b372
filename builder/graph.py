"""The graph: a small typed SSA form of language-model-sized ops (docs/lifecycle.md, "build").

A step is packed: T tokens of B sequences, prefill chunks and decode tokens mixed; S of the rows want logits. Values are
matrices [T or S, columns]. Weights are named by checkpoint module; what an op needs of a module (weight, scale, bias)
follows from the checkpoint's config.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
SIGNATURES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...] | range]] = {
    "embed": ((0,), 1, (1, 2)),
    "rms_norm": ((1,), 1, (0, 1)),
    "layer_norm": ((1,), 1, (0, 1)),
    "linear": ((1, 2), 1, (1, 2)),
    "clip": ((1,), 1, (0,)),
    "qk_norm": ((1,), 1, (2,)),
    "rope": ((1,), 1, (0,)),
    "kv_append": ((1,), 1, (0,)),
    "rope_kv_append": ((1,), 1, (0, 2)),
    "paged_attention": ((1,), 1, (0,)),
    "activation": ((1,), 1, (0,)),
    "gated_activation": ((2,), 1, (0,)),
    "moe": ((1,), 1, range(4, 1 << 20)),
    "add": ((2,), 1, (0,)),
    "scale": ((1,), 1, (0,)),
    "softcap": ((1,), 1, (0,)),
    "gather_rows": ((1,), 1, (0,)),
    "quantize": ((1,), 1, (0,)),
}

SAME_COLUMNS = frozenset(
    {
        *("add", "gated_activation", "activation", "rms_norm", "layer_norm", "clip", "qk_norm", "rope", "quantize"),
        *("paged_attention", "moe", "scale", "softcap"),
    }
)
"""Ops whose operands and result all have the same columns."""

NORMS = ("rms_norm", "layer_norm")


@dataclass(frozen=True)
class Graph:
    """Ops in execution order; the last one's output is the logits."""

    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown op, a wrong operand count, shape or dtype, a value defined twice or used
        before."""
        if not self.ops:
            raise ValueError("a graph without ops has no logits")
        defined: dict[str, Value] = {}
        for op in self.ops:
            if op.kind not in SIGNATURES:
                raise ValueError(f"unknown op {op.kind!r}")
            inputs, outputs, modules = SIGNATURES[op.kind]
            counts = (len(op.inputs), len(op.outputs), len(op.modules))
            if counts[0] not in inputs or counts[1] != outputs or counts[2] not in modules:
                raise ValueError(f"op {op.kind} has {counts} inputs, outputs, modules")
            for value in op.inputs:
                if defined.get(value.name) != value:
                    raise ValueError(f"op {op.kind} uses {value.name} before it is defined")
            for value in op.outputs:
                if value.name in defined:
                    raise ValueError(f"value {value.name} is defined twice")
                defined[value.name] = value
            if not _fits(op):
                raise ValueError(
                    f"op {op.kind} with output {op.outputs[0].name} has operands of wrong shapes or dtypes"
                )

    def uses(self) -> Counter[Value]:
        """How often each value is read; the logits count as read once."""
        counts = Counter(value for op in self.ops for value in op.inputs)
        counts[self.ops[-1].outputs[0]] += 1
        return counts

    def modules(self) -> set[str]:
        """All checkpoint modules that are read."""
        return {module for op in self.ops for module in op.modules}

    def check_weights(self, tensors: Iterable[str]) -> None:
        """Raises ValueError unless the graph reads exactly the modules that own these checkpoint tensors."""
        owners = {tensor.rpartition(".")[0] for tensor in tensors}
        if unread := sorted(owners - self.modules()):
            raise ValueError(f"the graph reads no tensor of {unread[0]}")
        if missing := sorted(self.modules() - owners):
            raise ValueError(f"the graph reads {missing[0]}, which the checkpoint does not have")


def _fits(op: Op) -> bool:
    """Whether shapes and dtypes of the operands are what the op takes and gives."""
    out = op.outputs[0]
    if not _dtypes_fit(op) or any(v.columns < 1 or v.rows != out.rows for v in op.inputs if op.kind != "gather_rows"):
        return False
    if op.kind in SAME_COLUMNS:
        return all(v.columns == out.columns for v in op.inputs)
    match op.kind:
        case "linear":
            n, k, epilogue = op.attributes["n"], op.attributes["k"], op.attributes["epilogue"]
            columns = n // 2 if epilogue == "gated" and isinstance(n, int) else n
            return (
                (len(op.inputs) == 2) == (epilogue == "add")
                and (len(op.modules) == 2) == (epilogue == "gated")
                and (op.inputs[0].columns, out.columns) == (k, columns)
                and all(v.columns == out.columns for v in op.inputs[1:])
            )
        case "kv_append" | "rope_kv_append":
            return op.inputs[0].columns > out.columns
        case "gather_rows":
            return (op.inputs[0].rows, out.rows) == ("T", "S") and op.inputs[0].columns == out.columns
    return True


def _dtypes_fit(op: Op) -> bool:
    """int8 values come from `quantize` (or a norm that it was fused into) and go into linears; all else is f32."""
    made_int8, read_int8 = op.outputs[0].dtype == "i8", [v.dtype == "i8" for v in op.inputs]
    if op.kind == "quantize" and not made_int8:
        return False
    if made_int8 and op.kind not in ("quantize", *NORMS):
        return False
    return not any(read_int8[1:] if op.kind == "linear" else read_int8)
