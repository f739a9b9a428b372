"""The sections of a CPU engine: which there are, how long, and how each is made from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precast.builder.graph import Op
from precast.builder.weights import Checkpoint
from precast.errors import BuildError
from precast.plugins.linear.layout import INT8_TAG, LAYOUTS, PANEL, interleave_gate_up, pack, padded_shape
from precast.runtime.text import vocab

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Section:
    """A section that is still to be made: its layout tag, its length in bytes, and what makes it."""

    tag: str
    length: int
    make: Callable[[], Array | bytes]


class Sections:
    """Collects the sections that ops ask for, in order of first use, each once. No weight is read before `make`."""

    def __init__(self, checkpoint: Checkpoint, isa: str) -> None:
        self.checkpoint = checkpoint
        self.isa = isa
        self.made: dict[str, Section] = {}

    def constant(self, name: str, data: Array) -> str:
        """An f32 vector that is not in the checkpoint."""
        self.made.setdefault(name, Section("vector.f32", data.nbytes, lambda: data))
        return name

    def vector(self, name: str) -> str:
        """A norm's gain or bias as f32."""
        checkpoint = self.checkpoint
        length = checkpoint.tensor(name).size * 4
        self.made.setdefault(name, Section("vector.f32", length, lambda: checkpoint.vector(name)))
        return name

    def norm(self, module: str, has_bias: bool) -> tuple[str, ...]:
        """Gain, and bias when it has one."""
        gain = self.vector(module + ".weight")
        return (gain, self.vector(module + ".bias")) if has_bias else (gain,)

    def linear(self, op: Op) -> tuple[str, ...]:
        """Sections of a linear: weight, for int8 its scale, and its bias when it has one."""
        modules = op.modules
        name = modules[0] if len(modules) == 1 else modules[0].rsplit(".", 1)[0] + ".gate_up"
        names = [self._packed(name, modules)]
        if self.checkpoint.linear_dtype(modules[0]) == np.int8:
            names.append(self._channels(name + ".scale", tuple(m + ".per_channel_scale" for m in modules)))
        if op.attributes["has_bias"]:
            names.append(self._channels(name + ".bias", tuple(m + ".bias" for m in modules)))
        return tuple(names)

    def embedding(self, modules: tuple[str, ...]) -> tuple[str, ...]:
        """The table that tokens gather from (the packed head when it is tied, else rows), and that of positions."""
        checkpoint, module = self.checkpoint, modules[0]
        positions = tuple(map(self._rows, modules[1:]))
        if not checkpoint.config.tie_word_embeddings:
            return (self._rows(module), *positions)
        names = [self._packed(module, (module,))]
        if checkpoint.linear_dtype(module) == np.int8:
            names.append(self._channels(module + ".scale", (module + ".per_channel_scale",)))
        return (*names, *positions)

    def experts(self, op: Op) -> tuple[str, ...]:
        """Sections of a mixture of experts, in the order of its modules."""
        raise BuildError(f"the cpu target has no kernel for {op.kind} ({op.outputs[0].name})")

    def _rows(self, module: str) -> str:
        checkpoint, name = self.checkpoint, module + ".weight"
        table = checkpoint.tensor(name)
        tag = "rows.f32" if table.dtype == np.float32 else "rows.bf16"
        self.made.setdefault(name, Section(tag, table.nbytes, lambda: checkpoint.tensor(name)))
        return name

    def add_vocab(self, folder: Path) -> None:
        """The token → bytes table, when the checkpoint has a tokenizer (without one the engine takes and gives ids)."""
        if (folder / "tokenizer.json").exists():
            data = vocab.section(folder, self.checkpoint.config.vocab_size)
            self.made["vocab_bytes"] = Section("vocab_bytes", len(data), lambda: data)

    def tag(self, module: str) -> str:
        """The layout of a linear's packed weight."""
        dtype = self.checkpoint.linear_dtype(module)
        if dtype == np.int8:
            return INT8_TAG[self.isa]
        return "panel16.f32" if dtype == np.float32 else "panel16.bf16"

    def group(self, module: str) -> int:
        """Columns that share an activation scale of a linear; 0: all, or not quantized."""
        quantized = self.checkpoint.linear_dtype(module) == np.int8
        return self.checkpoint.config.quantization.activation_group_size if quantized else 0

    def _packed(self, name: str, modules: tuple[str, ...]) -> str:
        checkpoint, tag, group = self.checkpoint, self.tag(modules[0]), self.group(modules[0])
        n, k = checkpoint.tensor(modules[0] + ".weight").shape
        try:
            padded_n, padded_k = padded_shape(tag, n, k, group)
        except ValueError as error:
            raise BuildError(f"{modules[0]} cannot be packed: {error}") from None

        def make() -> Array:
            parts = [checkpoint.tensor(m + ".weight") for m in modules]
            try:
                return pack(tag, parts[0] if len(parts) == 1 else interleave_gate_up(parts[0], parts[1]), group)
            except ValueError as error:
                raise BuildError(f"{' and '.join(modules)} cannot be packed: {error}") from None

        length = len(modules) * padded_n * padded_k * LAYOUTS[tag].packed.itemsize
        self.made.setdefault(name + ".weight", Section(tag, length, make))
        return name + ".weight"

    def _channels(self, name: str, tensors: tuple[str, ...]) -> str:
        """A vector over output channels, in packed order and padded to the panel with zeros."""
        checkpoint = self.checkpoint

        def make() -> Array:
            parts = [checkpoint.vector(t) for t in tensors]
            data = parts[0] if len(parts) == 1 else interleave_gate_up(parts[0], parts[1])
            return np.pad(data, (0, -len(data) % PANEL))

        n = checkpoint.tensor(tensors[0]).shape[0]
        self.made.setdefault(name, Section("vector.f32", len(tensors) * (n + -n % PANEL) * 4, make))
        return name
