"""The CPU target: a checkpoint's graph → plan, sections and packed weights of one ISA level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from precast._native import kernels
from precast.builder.engine_file import EngineWriter, aligned
from precast.builder.graph import Graph, Op
from precast.builder.models.decoder import decoder
from precast.builder.passes import lower
from precast.builder.passes.memory import plan_memory
from precast.builder.plan import Attribute, Buffer, Plan, PlanOp
from precast.builder.rope import inverse_frequencies
from precast.builder.weights import Checkpoint
from precast.errors import BuildError
from precast.plugins.linear.layout import INT8_TAG, interleave_gate_up, pack, padded_shape
from precast.progress import Progress
from precast.runtime.text import vocab

if TYPE_CHECKING:
    from precast.builder.build import BuildOptions

NUMERICS_VERSION = 0
"""Raised whenever a kernel's bits change: part of every engine's numerics_id."""

ROPE_SECTION = "rope.inverse_frequencies"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Section:
    """A section that is still to be made: its tag, its length in bytes, and what makes it."""

    tag: str
    length: int
    make: Callable[[], Array | bytes]


@dataclass(frozen=True)
class CpuEngine:
    """Everything but the bytes: `write` makes those, one weight at a time."""

    isa: str
    plan: Plan
    sections: dict[str, _Section]
    tactics: dict[str, Any]

    @property
    def size(self) -> int:
        """About how many bytes the file will have."""
        place = 1 << 16
        for section in self.sections.values():
            place = aligned(place, section.length) + section.length
        return place

    def write(self, path: Path, numerics_id: str, progress: Progress) -> None:
        """Packs and writes the file; peak memory is about three times the largest weight."""
        plan = Plan(self.plan.attributes | {"numerics_id": numerics_id}, self.plan.buffers, self.plan.ops).to_bytes()
        order = [("plan", "plan.v0", len(plan)), *((n, s.tag, s.length) for n, s in self.sections.items())]
        writer = EngineWriter(path, order)
        try:
            writer.add("plan", plan)
            for done, (name, section) in enumerate(self.sections.items()):
                progress("pack", done, len(self.sections))
                writer.add(name, section.make())
            writer.close()
        except BaseException:
            writer.abort()
            raise
        progress("pack", len(self.sections), len(self.sections))


def prepare(checkpoint: Checkpoint, options: BuildOptions) -> CpuEngine:
    """Decides everything that can be decided without reading a weight. Raises BuildError when it cannot work."""
    isa = kernels.isa_level()
    graph = lower(decoder(checkpoint.config), checkpoint.config)
    sections = _Sections(checkpoint, isa)
    ops = _plan_ops(graph, sections, options)
    sections.add_vocab(checkpoint.folder)
    return CpuEngine(isa, Plan(_attributes(checkpoint, options, isa), _buffers(graph), tuple(ops)), sections.made, {})


def _attributes(checkpoint: Checkpoint, options: BuildOptions, isa: str) -> dict[str, Attribute]:
    c = checkpoint.config
    assert options.max_seq_len is not None  # options are resolved here
    return {
        "isa": isa,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_layers": c.num_hidden_layers,
        "num_heads": c.num_attention_heads,
        "num_kv_heads": c.num_key_value_heads,
        "head_size": c.head_size,
        "kv_cache_dtype": options.kv_cache_dtype,
        "max_batch_size": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
        "max_seq_len": options.max_seq_len,
        "rotary_dim": c.rotary_dim,
    }


def _buffers(graph: Graph) -> tuple[Buffer, ...]:
    slots = plan_memory(graph)
    return tuple(Buffer(v.name, v.dtype, v.rows, v.columns, v.group, slots[v]) for v in _values(graph))


def _values(graph: Graph) -> Iterator[Any]:
    return (value for op in graph.ops for value in op.outputs)


def _plan_ops(graph: Graph, sections: _Sections, options: BuildOptions) -> Iterator[PlanOp]:
    numbers = {value: i for i, value in enumerate(_values(graph))}
    config = sections.checkpoint.config
    assert options.max_seq_len is not None
    frequencies, attention_factor = inverse_frequencies(config, options.max_seq_len)
    for op in graph.ops:
        weights: tuple[str, ...] = ()
        attributes = dict(op.attributes)
        if op.kind == "linear":
            weights = sections.linear(op)
        elif op.kind == "embed":
            weights = sections.embedding(op.modules[0])
        elif op.kind == "rms_norm" and op.modules:
            weights = (sections.vector(op.modules[0] + ".weight"),)
        elif op.kind == "rope_kv_append":
            weights = (sections.constant(ROPE_SECTION, frequencies),)
            attributes["attention_factor"] = attention_factor
        inputs, outputs = (tuple(numbers[v] for v in side) for side in (op.inputs, op.outputs))
        yield PlanOp(op.kind, inputs, outputs, weights, attributes)


class _Sections:
    """Collects the sections that ops ask for, in order of first use, each once."""

    def __init__(self, checkpoint: Checkpoint, isa: str) -> None:
        self.checkpoint = checkpoint
        self.isa = isa
        self.made: dict[str, _Section] = {}

    def constant(self, name: str, data: Array) -> str:
        self.made.setdefault(name, _Section("vector.f32", data.nbytes, lambda: data))
        return name

    def vector(self, name: str) -> str:
        checkpoint = self.checkpoint
        length = checkpoint.tensor(name).size * 4
        self.made.setdefault(name, _Section("vector.f32", length, lambda: checkpoint.vector(name)))
        return name

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

    def _tag(self, module: str) -> str:
        dtype = self.checkpoint.linear_dtype(module)
        if dtype == np.int8:
            return INT8_TAG[self.isa]
        return "panel16.f32" if dtype == np.float32 else "panel16.bf16"

    def _packed(self, name: str, modules: tuple[str, ...]) -> str:
        checkpoint, tag = self.checkpoint, self._tag(modules[0])
        group = checkpoint.config.quantization.activation_group_size if tag in INT8_TAG.values() else 0
        n, k = checkpoint.tensor(modules[0] + ".weight").shape
        try:
            padded_n, padded_k = padded_shape(tag, n, k, group)
        except ValueError as error:
            raise BuildError(f"{modules[0]} cannot be packed: {error}") from None

        def make() -> Array:
            parts = [checkpoint.tensor(m + ".weight") for m in modules]
            return pack(tag, parts[0] if len(parts) == 1 else interleave_gate_up(parts[0], parts[1]), group)

        itemsize = checkpoint.linear_dtype(modules[0]).itemsize
        self.made.setdefault(name + ".weight", _Section(tag, len(modules) * padded_n * padded_k * itemsize, make))
        return name + ".weight"

    def _channels(self, name: str, tensors: tuple[str, ...]) -> str:
        """A vector over output channels, in packed order and padded to the panel with zeros."""
        checkpoint = self.checkpoint

        def make() -> Array:
            parts = [checkpoint.vector(t) for t in tensors]
            data = parts[0] if len(parts) == 1 else interleave_gate_up(parts[0], parts[1])
            return np.pad(data, (0, -len(data) % 16))

        n = checkpoint.tensor(tensors[0]).shape[0]
        self.made.setdefault(name, _Section("vector.f32", len(tensors) * (n + -n % 16) * 4, make))
        return name

    def embedding(self, module: str) -> tuple[str, ...]:
        """The table that tokens gather from: the packed head when it is tied, else rows."""
        checkpoint = self.checkpoint
        if checkpoint.config.tie_word_embeddings:
            names = [self._packed(module, (module,))]
            if checkpoint.linear_dtype(module) == np.int8:
                names.append(self._channels(module + ".scale", (module + ".per_channel_scale",)))
            return tuple(names)
        name = module + ".weight"
        table = checkpoint.tensor(name)
        tag = "rows.f32" if table.dtype == np.float32 else "rows.bf16"
        self.made.setdefault(name, _Section(tag, table.nbytes, lambda: checkpoint.tensor(name)))
        return (name,)

    def add_vocab(self, folder: Path) -> None:
        """The token → bytes table, when the checkpoint has a tokenizer (without one the engine takes and gives ids)."""
        if (folder / "tokenizer.json").exists():
            size = self.checkpoint.config.vocab_size
            data = vocab.section(folder, size)
            self.made["vocab_bytes"] = _Section("vocab_bytes", len(data), lambda: data)
