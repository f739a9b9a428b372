"""Passes: graph → graph, each small and correct on its own. `lower` applies them in the order of the CPU target."""

from __future__ import annotations

from precast.builder.graph import Graph
from precast.builder.passes.fuse import fuse_add, fuse_rope_kv_append, merge_gate_up
from precast.builder.passes.quantize import fuse_norm_quantize, insert_quantize
from precast.checkpoint import ModelConfig


def lower(graph: Graph, config: ModelConfig) -> Graph:
    """Merges and fuses neighbours, then puts quantization where linears want it."""
    graph = merge_gate_up(graph, config)
    graph = fuse_add(graph)
    graph = fuse_rope_kv_append(graph)
    graph = insert_quantize(graph, config)
    return fuse_norm_quantize(graph)
