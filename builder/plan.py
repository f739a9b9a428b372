"""The plan (docs/engine-format.md, `plan.v0`): what the runtime executes, as data, in its binary form, and as text."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

Attribute = int | float | str

MAX_ITEMS = 1 << 20
"""No plan has more buffers, ops, operands or attributes; a larger count is damage."""


@dataclass(frozen=True)
class Buffer:
    """A value of the step. `rows`: "T" tokens or "S" rows whose logits are wanted; dtype "f32" or "i8" (quantized)."""

    name: str
    dtype: str
    rows: str
    columns: int
    group: int
    slot: int


@dataclass(frozen=True)
class PlanOp:
    """One kernel call: buffer numbers, section names of weights, attributes."""

    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: tuple[str, ...]
    attributes: dict[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Attributes of the model, the buffers, and the ops in order; the last op writes the logits."""

    attributes: dict[str, Attribute]
    buffers: tuple[Buffer, ...]
    ops: tuple[PlanOp, ...]

    def to_bytes(self) -> bytes:
        """The binary form."""
        out = [_attributes(self.attributes), struct.pack("<I", len(self.buffers))]
        for b in self.buffers:
            kinds = (("f32", "i8").index(b.dtype), ("T", "S").index(b.rows))
            out += [_text(b.name), struct.pack("<BBIiI", *kinds, b.columns, b.group, b.slot)]
        out.append(struct.pack("<I", len(self.ops)))
        for op in self.ops:
            out.append(_text(op.kernel))
            for numbers in (op.inputs, op.outputs):
                out.append(struct.pack(f"<I{len(numbers)}I", len(numbers), *numbers))
            out += [struct.pack("<I", len(op.weights)), *map(_text, op.weights), _attributes(op.attributes)]
        return b"".join(out)

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Reads the binary form. Raises ValueError when it is damaged, also when an op names a buffer that is none."""
        reader = _Reader(data)
        try:
            plan = cls(reader.attributes(), tuple(reader.buffers()), tuple(reader.ops()))
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise ValueError(f"damaged plan: {error}") from None
        if reader.place != len(data):
            raise ValueError("damaged plan: bytes are left over")
        for op in plan.ops:
            if any(number >= len(plan.buffers) for number in (*op.inputs, *op.outputs)):
                raise ValueError(f"damaged plan: op {op.kernel!r} names a buffer that does not exist")
        return plan

    def to_text(self) -> str:
        """One line an op, for people: `y:f32[T,576] = linear(x) weights attributes`."""

        def value(number: int) -> str:
            b = self.buffers[number]
            group = f"/{b.group}" if b.dtype == "i8" and b.group else ""
            return f"{b.name}:{b.dtype}{group}[{b.rows},{b.columns}]@{b.slot}"

        lines = []
        for op in self.ops:
            outputs = ", ".join(map(value, op.outputs))
            inputs = ", ".join(self.buffers[i].name for i in op.inputs)
            rest = [*op.weights, *(f"{k}={v}" for k, v in op.attributes.items())]
            lines.append(f"{outputs} = {op.kernel}({inputs}) {' '.join(rest)}".rstrip())
        return "\n".join(lines)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<H", len(raw)) + raw


def _attributes(values: dict[str, Attribute]) -> bytes:
    out = [struct.pack("<I", len(values))]
    for key, value in values.items():
        out.append(_text(key))
        if isinstance(value, str):
            out += [b"\2", _text(value)]
        elif isinstance(value, float):
            out.append(struct.pack("<Bd", 1, value))
        else:
            out.append(struct.pack("<Bq", 0, value))
    return b"".join(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def unpack(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + form, self.data, self.place)
        self.place += struct.calcsize("<" + form)
        return values

    def count(self) -> int:
        (n,) = self.unpack("I")
        if n > MAX_ITEMS:
            raise ValueError(f"damaged plan: a count of {n}")
        return n

    def text(self) -> str:
        (length,) = self.unpack("H")
        raw = self.data[self.place : self.place + length]
        if len(raw) != length:
            raise ValueError("damaged plan: a text runs over the end")
        self.place += length
        return raw.decode()

    def attributes(self) -> dict[str, Attribute]:
        values: dict[str, Attribute] = {}
        for _ in range(self.count()):
            key = self.text()
            (kind,) = self.unpack("B")
            if kind not in (0, 1, 2):
                raise ValueError(f"damaged plan: attribute type {kind}")
            values[key] = self.text() if kind == 2 else self.unpack("qd"[kind])[0]
        return values

    def buffers(self) -> list[Buffer]:
        out = []
        for _ in range(self.count()):
            name = self.text()
            dtype, rows, columns, group, slot = self.unpack("BBIiI")
            if dtype > 1 or rows > 1:
                raise ValueError(f"damaged plan: buffer {name!r} of an unknown kind")
            out.append(Buffer(name, ("f32", "i8")[dtype], ("T", "S")[rows], columns, group, slot))
        return out

    def ops(self) -> list[PlanOp]:
        out = []
        for _ in range(self.count()):
            kernel = self.text()
            inputs = self.unpack(f"{self.count()}I")
            outputs = self.unpack(f"{self.count()}I")
            weights = tuple(self.text() for _ in range(self.count()))
            out.append(PlanOp(kernel, inputs, outputs, weights, self.attributes()))
        return out
