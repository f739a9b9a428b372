"""The sections of a CPU engine: which there are, how long, and how each is made from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from precast.builder.graph import Op
from precast.builder.plan import Attribute
from precast.builder.weights import Checkpoint
from precast.errors import BuildError
from precast.plugins.linear.layout import INT8_TAG, LAYOUTS, PANEL, interleave_gate_up, pack, padded_shape
from precast.runtime.text import vocab

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Section:
    """A section that is still to be made: its layout tag, its length in bytes, and what makes it, at once or in `parts`
    of one size."""

    tag: str
    length: int
    make: Callable[[], Array | bytes | Iterator[Array]]
    parts: int = 1


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

    def experts(self, op: Op) -> tuple[tuple[str, ...], dict[str, Attribute]]:
        """Sections and attributes of a mixture of experts. The weights of all its experts are one section, one behind
        the other; router and shared expert's gate are f32, so that routing does not depend on the experts' dtype."""
        count, shared = int(op.attributes["num_experts"]), bool(op.attributes["shared_intermediate_size"])
        prefix = op.modules[0].rsplit(".", 1)[0]
        mlps = [op.modules[i : i + 3] for i in range(1, 1 + 3 * (count + shared), 3)]
        names = [self._packed_f32(op.modules[0])]
        for name, group in ((".experts", mlps[:count]), (".shared_expert", mlps[count:])):
            if group:
                names += self._stacked(prefix + name + ".gate_up", [(fc, gate) for fc, gate, _ in group])
                names += self._stacked(prefix + name + ".proj", [(proj,) for _, _, proj in group])
        if shared:
            names.append(self._packed_f32(op.modules[-1]))
        groups = {self.group(module) for mlp in mlps for module in mlp} - {0} or {0}
        more: dict[str, Attribute] = {"shared_gate": int(shared), "activation_group_size": groups.pop()}
        return tuple(names), op.attributes | more

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

    def _packed_f32(self, module: str) -> str:
        checkpoint, name = self.checkpoint, module + ".weight"
        padded_n, padded_k = padded_shape("panel16.f32", *checkpoint.tensor(name).shape)

        def make() -> Array:
            return pack("panel16.f32", checkpoint.tensor(name).astype(np.float32))

        self.made.setdefault(name, Section("panel16.f32", padded_n * padded_k * 4, make))
        return name

    def _stacked(self, name: str, experts: list[tuple[str, ...]]) -> list[str]:
        """The packed weights of a linear of each expert, and for int8 their scales, each one section. `experts`: the
        modules of each, gate and up or one alone."""
        if len({self.checkpoint.linear_dtype(module) for expert in experts for module in expert}) > 1:
            raise BuildError(f"quantize all experts of {name}, or exclude all")
        own = Sections(self.checkpoint, self.isa)
        weights = [own.made[own._packed(str(i), expert)] for i, expert in enumerate(experts)]
        self.made[name + ".weight"] = _joined(weights)
        if self.checkpoint.linear_dtype(experts[0][0]) != np.int8:
            return [name + ".weight"]
        scales = [tuple(module + ".per_channel_scale" for module in expert) for expert in experts]
        made = [own.made[own._channels(f"{i}.scale", tensors)] for i, tensors in enumerate(scales)]
        self.made[name + ".scale"] = _joined(made)
        return [name + ".weight", name + ".scale"]

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


def _joined(sections: list[Section]) -> Section:
    """One section of several alike, made one after the other."""

    def make() -> Iterator[Array]:
        for section in sections:
            yield cast("Array", section.make())

    return Section(sections[0].tag, sum(s.length for s in sections), make, len(sections))
