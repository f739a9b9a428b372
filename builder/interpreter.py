"""The reference: runs any graph in numpy with the plugins' reference functions. The oracle of every target.

Slow and plain on purpose. It keeps each sequence's keys and values contiguous; pages are a matter of the targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precast.builder.graph import Graph, Op, Value
from precast.builder.rope import inverse_frequencies
from precast.builder.weights import Checkpoint
from precast.checkpoint import is_quantized
from precast.plugins.activation.reference import activation, gated_activation
from precast.plugins.embed.reference import embed
from precast.plugins.gather_rows.reference import gather_rows
from precast.plugins.linear import reference as linear_reference
from precast.plugins.paged_attention.reference import paged_attention
from precast.plugins.rms_norm.reference import rms_norm
from precast.plugins.rope.reference import rope, rope_cos_sin

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


class Interpreter:
    """One sequence run through a graph. int8 values stay as f32 here: int8 linears quantize what they read."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, max_seq_len: int) -> None:
        self.graph = graph
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.frequencies, self.attention_factor = inverse_frequencies(self.config, max_seq_len)
        shape = (0, self.config.num_key_value_heads, self.config.head_size)
        self.keys = [np.zeros(shape, np.float32) for _ in range(self.config.num_hidden_layers)]
        self.values = [np.zeros(shape, np.float32) for _ in range(self.config.num_hidden_layers)]
        self.length = 0

    def run(self, tokens: list[int], kv_dtype: np.dtype[Any] | None = None) -> F32:
        """Appends `tokens` to the sequence; → logits f32 [len(tokens), vocab_size] of every position.

        `kv_dtype`: the dtype that keys and values are rounded to (None: f32).
        """
        self.kv_dtype = kv_dtype
        self.positions = np.arange(self.length, self.length + len(tokens))
        values: dict[Value, F32] = {}
        for op in self.graph.ops:
            inputs = [values[v] for v in op.inputs]
            values[op.outputs[0]] = self._embed(op, tokens) if op.kind == "embed" else self._op(op, inputs)
        self.length += len(tokens)
        return values[self.graph.ops[-1].outputs[0]]

    def _embed(self, op: Op, tokens: list[int]) -> F32:
        module = op.modules[0]
        rows = embed(tokens, self.checkpoint.tensor(module + ".weight"))
        if self.config.tie_word_embeddings and is_quantized(self.config, module):
            rows = rows * self.checkpoint.vector(module + ".per_channel_scale")[tokens, None]
        return rows

    def _op(self, op: Op, x: list[F32]) -> F32:
        match op.kind:
            case "rms_norm":
                gain = self.checkpoint.vector(op.modules[0] + ".weight") if op.modules else None
                return rms_norm(x[0], gain, float(op.attributes["epsilon"]))
            case "quantize":
                return x[0]
            case "gather_rows":
                return gather_rows(x[0], np.arange(len(x[0])))
            case "linear":
                return self._linear(op, x)
            case "rope":
                return self._rope(x[0])
            case "kv_append":
                return self._kv_append(op, x[0])
            case "rope_kv_append":
                return self._kv_append(op, self._rope(x[0]))
            case "paged_attention":
                layer = int(op.attributes["layer"])
                q = x[0].reshape(len(x[0]), -1, self.config.head_size)
                scale = float(op.attributes["scale"])
                y = paged_attention(q, self.keys[layer], self.values[layer], self.positions, scale)
                return y.reshape(len(x[0]), -1)
            case "gated_activation":
                return gated_activation(str(op.attributes["activation"]), x[0], x[1])
            case "add":
                return x[0] + x[1]
        raise ValueError(f"unknown op {op.kind}")

    def _linear(self, op: Op, x: list[F32]) -> F32:
        def part(suffix: str) -> list[Array]:
            return [self.checkpoint.tensor(module + suffix) for module in op.modules]

        bias = np.concatenate(part(".bias")).astype(np.float32) if op.attributes["has_bias"] else None
        weight = np.concatenate(part(".weight"))
        if is_quantized(self.config, op.modules[0]):
            scale = np.concatenate(part(".per_channel_scale"))
            group = self.config.quantization.activation_group_size
            y = linear_reference.linear_int8(x[0], weight, scale, group, bias)
        else:
            y = linear_reference.linear(x[0], weight, bias)
        if op.attributes["epilogue"] == "gated":
            half = y.shape[-1] // 2
            return gated_activation(str(op.attributes["activation"]), y[:, :half], y[:, half:])
        if op.attributes["epilogue"] == "act":
            return activation(str(op.attributes["activation"]), y)
        return x[1] + y if op.attributes["epilogue"] == "add" else y

    def _rope(self, qkv: F32) -> F32:
        c = self.config
        cos, sin = rope_cos_sin(self.positions, self.frequencies, self.attention_factor)
        x = qkv.reshape(len(qkv), -1, c.head_size).copy()
        rotated = c.num_attention_heads + c.num_key_value_heads
        x[:, :rotated] = rope(x[:, :rotated], cos, sin, c.rotary_dim)
        return x.reshape(len(qkv), -1)

    def _kv_append(self, op: Op, qkv: F32) -> F32:
        c, layer = self.config, int(op.attributes["layer"])
        x = qkv.reshape(len(qkv), -1, c.head_size)
        q, k, v = np.split(x, [c.num_attention_heads, c.num_attention_heads + c.num_key_value_heads], axis=1)
        for cache, new in ((self.keys, k), (self.values, v)):
            rounded = new if self.kv_dtype is None else new.astype(self.kv_dtype).astype(np.float32)
            cache[layer] = np.concatenate([cache[layer], rounded])
        return q.reshape(len(qkv), -1)
