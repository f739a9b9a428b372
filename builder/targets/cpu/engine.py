"""The CPU target: a checkpoint's graph → plan, sections and packed weights of one ISA level."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from precast._native import kernels, runtime
from precast.builder.engine_file import EngineWriter, aligned
from precast.builder.graph import NORMS, Graph, Op, Value
from precast.builder.models.decoder import decoder
from precast.builder.options import BuildConfig
from precast.builder.passes import lower
from precast.builder.passes.memory import plan_memory
from precast.builder.plan import Attribute, Buffer, Plan, PlanOp
from precast.builder.rope import inverse_frequencies
from precast.builder.targets.cpu import tactics
from precast.builder.targets.cpu.memory import MemoryNeed, estimate
from precast.builder.targets.cpu.sections import Section, Sections
from precast.builder.targets.cpu.shapes import shape_of
from precast.builder.weights import Checkpoint
from precast.checkpoint import ModelConfig
from precast.errors import BuildError
from precast.progress import Progress

ROPE_SECTIONS = {"global": "rope.inverse_frequencies", "local": "rope.local_inverse_frequencies"}
ALIBI_SECTION = "alibi.slopes"

KERNELS = (
    "embed",
    "rms_norm",
    "layer_norm",
    "quantize",
    "linear",
    "rope_kv_append",
    "paged_attention",
    "gather_rows",
    "activation",
    "gated_activation",
    "scale",
    "add",
    "softcap",
    "moe",
)
"""The ops that this target runs; whatever else a graph has must be gone after the passes."""


@dataclass(frozen=True)
class CpuEngine:
    """Everything but the bytes: `write` makes those, one weight at a time."""

    isa: str
    plan: Plan
    sections: dict[str, Section]
    tactics: dict[str, Any]
    memory: MemoryNeed
    rope_digest: str

    @property
    def size(self) -> int:
        """About how many bytes the file will have."""
        place = 1 << 16
        for section in self.sections.values():
            place = aligned(place, section.length) + section.length
        return place

    def write(self, path: Path, numerics_id: str, progress: Progress) -> None:
        """Packs and writes the file; peak memory is about twice the largest packed weight."""
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


def prepare(checkpoint: Checkpoint, config: BuildConfig) -> CpuEngine:
    """Decides everything that can be decided without reading a weight. Raises BuildError when it cannot work."""
    isa = kernels.isa_level()
    graph = lower(decoder(checkpoint.config), checkpoint.config)
    _refuse_unknown_ops(graph)
    sections = Sections(checkpoint, isa)
    ropes = Ropes(checkpoint.config, config.max_seq_len)
    ops = tuple(_plan_ops(graph, sections, ropes))
    sections.add_vocab(checkpoint.folder)
    plan = Plan(_attributes(checkpoint.config, config, isa), _buffers(graph), ops)
    memory = estimate(plan, sections.made.values())
    return CpuEngine(isa, plan, sections.made, {}, memory, ropes.digest())


class Ropes:
    """The frequencies that the layers rotate with: "global" and "local" ones, as far as any layer does."""

    def __init__(self, model: ModelConfig, max_seq_len: int) -> None:
        kinds = {model.rope(layer) for layer in range(model.num_hidden_layers)} - {"none"}
        self.rotary_dim = model.rotary_dim
        self.made = {kind: inverse_frequencies(model, max_seq_len, kind == "local") for kind in sorted(kinds)}

    def digest(self) -> str:
        """Part of what fixes an engine's bits."""
        parts = (frequencies.tobytes() + struct.pack("<d", factor) for frequencies, factor in self.made.values())
        return hashlib.sha256(b"".join(parts)).hexdigest()[:32]

    def lower(self, op: Op, sections: Sections) -> tuple[tuple[str, ...], dict[str, Attribute]]:
        """Weights and attributes of a rope_kv_append."""
        attributes = dict(op.attributes)
        kind = str(attributes.pop("rope"))
        weights: tuple[str, ...] = ()
        if kind != "none":
            frequencies, factor = self.made[kind]
            weights = (sections.constant(ROPE_SECTIONS[kind], frequencies),)
            attributes["attention_factor"] = factor
        attributes["rotary_dim"] = 0 if kind == "none" else self.rotary_dim
        return weights + tuple(sections.vector(module + ".weight") for module in op.modules), attributes


def with_tactics(engine: CpuEngine, cpu: str, level: int, progress: Progress) -> CpuEngine:
    """The engine with its kernels' choices made by timing on this machine, whose CPU is named `cpu`; `level`: the
    optimization level, 0: as it is."""
    if level == 0:
        return engine
    plan = engine.plan
    shapes = [shape_of(plan, op, engine.sections) for op in plan.ops]
    found = tactics.choose(
        [shape for shape in shapes if shape is not None],
        plan.attributes,
        cpu,
        runtime.available_cpus(),
        level,
        progress,
    )
    ops = tuple(
        op if shape is None else replace(op, attributes=op.attributes | found.chosen[shape].choice)
        for op, shape in zip(plan.ops, shapes, strict=True)
    )
    return replace(engine, plan=replace(plan, ops=ops), tactics=found.to_json())


def _refuse_unknown_ops(graph: Graph) -> None:
    for op in graph.ops:
        if op.kind not in KERNELS:
            raise BuildError(f"the cpu target has no kernel for {op.kind} ({op.outputs[0].name})")


def _attributes(model: ModelConfig, config: BuildConfig, isa: str) -> dict[str, Attribute]:
    return {
        "isa": isa,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_layers": model.num_hidden_layers,
        "num_heads": model.num_attention_heads,
        "num_kv_heads": model.num_key_value_heads,
        "head_size": model.head_size,
        "kv_cache_dtype": config.kv_cache_dtype,
        "max_batch_size": config.max_batch_size,
        "max_num_tokens": config.max_num_tokens,
        "max_seq_len": config.max_seq_len,
    }


def _buffers(graph: Graph) -> tuple[Buffer, ...]:
    slots = plan_memory(graph)
    return tuple(Buffer(v.name, v.dtype, v.rows, v.columns, v.group, slots[v]) for v in _values(graph))


def _values(graph: Graph) -> Iterator[Value]:
    return (value for op in graph.ops for value in op.outputs)


def _plan_ops(graph: Graph, sections: Sections, ropes: Ropes) -> Iterator[PlanOp]:
    numbers = {value: i for i, value in enumerate(_values(graph))}
    for op in graph.ops:
        weights: tuple[str, ...] = ()
        attributes = dict(op.attributes)
        if op.kind == "linear":
            weights = sections.linear(op)
        elif op.kind == "embed":
            weights = sections.embedding(op.modules)
        elif op.kind in NORMS and op.modules:
            weights = sections.norm(op.modules[0], bool(attributes.get("has_bias", 0)))
        elif op.kind == "rope_kv_append":
            weights, attributes = ropes.lower(op, sections)
        elif op.kind == "paged_attention" and attributes["alibi"]:
            slopes = sections.checkpoint.config.alibi_slopes
            weights = (sections.constant(ALIBI_SECTION, np.array(slopes, np.float32)),)
        elif op.kind == "moe":
            weights, attributes = sections.experts(op)
        inputs, outputs = (tuple(numbers[v] for v in side) for side in (op.inputs, op.outputs))
        yield PlanOp(op.kind, inputs, outputs, weights, attributes)
