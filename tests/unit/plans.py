"""Plans of a few ops, written, loaded and run as engines: what the runtime makes of an op and its attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precast._native import kernels
from precast.builder.engine_file import EngineWriter
from precast.builder.plan import Attribute, Buffer, Plan, PlanOp
from tests.steps import Steps

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


class Program:
    """Ops over a table of rows, which the tokens pick; `engine` shows one of the values as logits.

    Values are numbers; the first is the table's rows, of T rows. `head_size`, `num_heads` … may be set by name.
    """

    def __init__(self, table: F32, **attributes: Attribute) -> None:
        self.table = table
        self.buffers: list[Buffer] = []
        self.ops: list[PlanOp] = []
        self.sections: dict[str, tuple[str, Array]] = {"table": ("rows.f32", table)}
        sizes: dict[str, Attribute] = {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "head_size": 8}
        limits: dict[str, Attribute] = {"max_batch_size": 64, "max_num_tokens": 1024, "max_seq_len": 2048}
        others: dict[str, Attribute] = {"hidden_size": table.shape[1], "kv_cache_dtype": "float32"}
        self.attributes = sizes | limits | others | {"isa": kernels.isa_level()} | attributes
        self.op("embed", (), table.shape[1], ("table",), scale=1.0, learned_positions=0)

    def weight(self, name: str, tag: str, data: Array) -> str:
        """Adds a section."""
        self.sections[name] = (tag, data)
        return name

    def vector(self, name: str, data: Array) -> str:
        """Adds an f32 vector."""
        return self.weight(name, "vector.f32", np.asarray(data, np.float32))

    def op(
        self,
        kernel: str,
        inputs: tuple[int, ...],
        columns: int,
        weights: tuple[str, ...] = (),
        rows: str = "T",
        dtype: str = "f32",
        group: int = 0,
        slot: int | None = None,
        **attributes: Attribute,
    ) -> int:
        """Adds an op and its output, in a slot of its own unless another is named; → the output's number."""
        number = len(self.buffers)
        self.buffers.append(
            Buffer(f"v{number}", dtype, rows, columns, group, number if slot is None else self.buffers[slot].slot)
        )
        self.ops.append(PlanOp(kernel, inputs, (number,), weights, attributes))
        return number

    def engine(self, path: Path, value: int) -> Path:
        """Writes an engine whose logits are `value`: f32, as wide as the table is long."""
        if self.buffers[value].rows == "T":
            value = self.op("gather_rows", (value,), self.buffers[value].columns, rows="S")
            self.op("scale", (value,), self.buffers[value].columns, rows="S", factor=1.0)
        plan = Plan(self.attributes | {"vocab_size": len(self.table)}, tuple(self.buffers), tuple(self.ops)).to_bytes()
        order = [("plan", "plan.v0", len(plan)), *((n, tag, data.nbytes) for n, (tag, data) in self.sections.items())]
        writer = EngineWriter(path, order)
        writer.add("plan", plan)
        for name, (_, data) in self.sections.items():
            writer.add(name, data)
        writer.close()
        return path

    def run(self, path: Path, value: int, tokens: list[int], threads: int = 1) -> F32:
        """The value for one sequence of `tokens`, f32 [tokens, columns]."""
        return Steps(self.engine(path, value), threads).logits(tokens)
