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
from precast.plugins.add.reference import add
from precast.plugins.embed.reference import embed
from precast.plugins.gather_rows.reference import gather_rows
from precast.plugins.kv_append.reference import kv_round
from precast.plugins.layer_norm.reference import layer_norm
from precast.plugins.linear import reference as linear_reference
from precast.plugins.moe.reference import Expert, moe
from precast.plugins.paged_attention.reference import paged_attention, q_as_multiplied
from precast.plugins.qk_norm.reference import clip, qk_norm
from precast.plugins.rms_norm.reference import rms_norm
from precast.plugins.rope.reference import rope, rope_cos_sin
from precast.plugins.scale.reference import scale
from precast.plugins.softcap.reference import softcap

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


class Interpreter:
    """One sequence run through a graph. int8 values stay as f32 here: int8 linears quantize what they read."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, max_seq_len: int) -> None:
        self.graph = graph
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        ropes = {self.config.rope(layer) for layer in range(self.config.num_hidden_layers)} - {"none"}
        self.frequencies = {kind: inverse_frequencies(self.config, max_seq_len, kind == "local") for kind in ropes}
        shape = (0, self.config.num_key_value_heads, self.config.head_size)
        self.keys = [np.zeros(shape, np.float32) for _ in range(self.config.num_hidden_layers)]
        self.values = [np.zeros(shape, np.float32) for _ in range(self.config.num_hidden_layers)]
        self.length = 0

    def run(self, tokens: list[int], kv_cache_dtype: str = "float32", level: str = "avx2") -> F32:
        """Appends `tokens` to the sequence; → logits f32 [len(tokens), vocab_size] of every position.

        `kv_cache_dtype`: how keys and values are rounded (plugins/kv_append/reference.py); `level`: the ISA level as
        which attention rounds q (plugins/paged_attention/reference.py).
        """
        self.kv_cache_dtype, self.level = kv_cache_dtype, level
        self.positions = np.arange(self.length, self.length + len(tokens))
        values: dict[Value, F32] = {}
        for op in self.graph.ops:
            inputs = [values[v] for v in op.inputs]
            values[op.outputs[0]] = self._embed(op, tokens) if op.kind == "embed" else self._op(op, inputs)
        self.length += len(tokens)
        return values[self.graph.ops[-1].outputs[0]]

    def _embed(self, op: Op, tokens: list[int]) -> F32:
        module = op.modules[0]
        table = self.checkpoint.tensor(module + ".weight")
        if self.checkpoint.linear_dtype(module) == np.int8 and self.config.tie_word_embeddings:
            rows = table[tokens].astype(np.float32)
            table = rows * self.checkpoint.vector(module + ".per_channel_scale")[tokens, None]
            tokens = list(range(len(tokens)))
        positions = self.checkpoint.tensor(op.modules[1] + ".weight") if op.attributes["learned_positions"] else None
        return embed(tokens, table, float(op.attributes["scale"]), self.positions, positions)

    def _op(self, op: Op, x: list[F32]) -> F32:
        a = op.attributes
        match op.kind:
            case "rms_norm" | "layer_norm":
                return self._norm(op, x[0])
            case "quantize":
                return x[0]
            case "gather_rows":
                return gather_rows(x[0], np.arange(len(x[0])))
            case "linear":
                return self._linear(op, x)
            case "clip" | "qk_norm" | "rope":
                return self._before_append(op, x[0])
            case "kv_append":
                return self._kv_append(op, x[0])
            case "rope_kv_append":
                return self._kv_append(op, self._before_append(op, x[0]))
            case "paged_attention":
                return self._attention(op, x[0])
            case "activation":
                return activation(str(a["activation"]), x[0])
            case "gated_activation":
                return gated_activation(str(a["activation"]), x[0], x[1])
            case "moe":
                return self._moe(op, x[0])
            case "add":
                return add(x[0], x[1])
            case "scale":
                return scale(x[0], float(a["factor"]))
            case "softcap":
                return softcap(x[0], float(a["cap"]))
        raise ValueError(f"unknown op {op.kind}")

    def _norm(self, op: Op, x: F32) -> F32:
        a, name = op.attributes, op.modules[0] if op.modules else ""
        gain = self.checkpoint.vector(name + ".weight") if op.modules else None
        if op.kind == "rms_norm":
            return rms_norm(x, gain, float(a["epsilon"]))
        bias = self.checkpoint.vector(name + ".bias") if a["has_bias"] else None
        return layer_norm(x, gain, bias, float(a["epsilon"]))

    def _linear(self, op: Op, x: list[F32]) -> F32:
        a = op.attributes
        y = self._product(op.modules, x[0], bool(a["has_bias"]))
        if a["epilogue"] == "gated":
            half = y.shape[-1] // 2
            return gated_activation(str(a["activation"]), y[:, :half], y[:, half:])
        if a["epilogue"] == "act":
            return activation(str(a["activation"]), y)
        return x[1] + y if a["epilogue"] == "add" else y

    def _product(self, modules: tuple[str, ...], x: F32, has_bias: bool = False) -> F32:
        """x times the weights of modules, one after the other."""

        def part(suffix: str) -> list[Array]:
            return [self.checkpoint.tensor(module + suffix) for module in modules]

        bias = np.concatenate(part(".bias")).astype(np.float32) if has_bias else None
        weight = np.concatenate(part(".weight"))
        if is_quantized(self.config, modules[0]):
            scales = np.concatenate(part(".per_channel_scale"))
            return linear_reference.linear_int8(x, weight, scales, self.config.quantization.activation_group_size, bias)
        return linear_reference.linear(x, weight, bias)

    def _before_append(self, op: Op, qkv: F32) -> F32:
        """clip, qk_norm and rope, as far as the op has them."""
        c, a = self.config, op.attributes
        x = qkv.reshape(len(qkv), -1, c.head_size).copy()
        q, k = slice(0, c.num_attention_heads), slice(c.num_attention_heads, -c.num_key_value_heads)
        if limit := float(a.get("clip", 0)):
            x = clip(x, limit)
        if (kind := str(a.get("qk_norm", "none"))) != "none":
            for heads, module in zip((q, k), op.modules, strict=True):
                gain = self.checkpoint.vector(module + ".weight")
                x[:, heads] = qk_norm(kind, x[:, heads], gain, float(a["epsilon"]))
        if (which := str(a.get("rope", "none"))) != "none":
            cos, sin = rope_cos_sin(self.positions, *self.frequencies[which])
            both = slice(0, c.num_attention_heads + c.num_key_value_heads)
            x[:, both] = rope(x[:, both], cos, sin, c.rotary_dim)
        return x.reshape(len(qkv), -1)

    def _kv_append(self, op: Op, qkv: F32) -> F32:
        c, layer = self.config, int(op.attributes["layer"])
        x = qkv.reshape(len(qkv), -1, c.head_size)
        q, k, v = np.split(x, [c.num_attention_heads, c.num_attention_heads + c.num_key_value_heads], axis=1)
        for cache, new in ((self.keys, k), (self.values, v)):
            cache[layer] = np.concatenate([cache[layer], kv_round(new, self.kv_cache_dtype)])
        return q.reshape(len(qkv), -1)

    def _attention(self, op: Op, x: F32) -> F32:
        a, layer = op.attributes, int(op.attributes["layer"])
        q = q_as_multiplied(x.reshape(len(x), -1, self.config.head_size), self.kv_cache_dtype, self.level)
        slopes = np.array(self.config.alibi_slopes, np.float32) if a["alibi"] else None
        cache = (self.keys[layer], self.values[layer], self.positions)
        y = paged_attention(q, *cache, float(a["scale"]), int(a["window"]), float(a["softcap"]), slopes)
        return y.reshape(len(x), -1)

    def _moe(self, op: Op, x: F32) -> F32:
        a, count = op.attributes, int(op.attributes["num_experts"])
        mlps = [op.modules[i : i + 3] for i in range(1, len(op.modules) - 2, 3)]

        def expert(fc: str, gate: str, proj: str) -> Expert:
            def run(rows: F32) -> F32:
                h = gated_activation(str(a["activation"]), self._product((fc,), rows), self._product((gate,), rows))
                return self._product((proj,), h)

            return run

        runs = [expert(*mlp) for mlp in mlps]
        router, shared = self._product(op.modules[:1], x), bool(a["shared_intermediate_size"])
        rest = (runs[count], self._product(op.modules[-1:], x)) if shared else ()
        return moe(x, router, runs[:count], int(a["top_k"]), bool(a["norm_topk_prob"]), *rest)
