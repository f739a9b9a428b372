"""The one decoder builder: a checkpoint's config → graph. Families differ in their config, not here."""

from __future__ import annotations

from precast.builder.graph import Graph, Op, Rows, Value
from precast.builder.plan import Attribute
from precast.checkpoint import ModelConfig, tensor_shapes


class _Builder:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.ops: list[Op] = []

    def op(
        self,
        kind: str,
        name: str,
        columns: int,
        inputs: tuple[Value, ...],
        modules: tuple[str, ...] = (),
        rows: Rows = "T",
        **attributes: Attribute,
    ) -> Value:
        out = Value(name, rows, columns)
        self.ops.append(Op(kind, inputs, (out,), modules, attributes))
        return out

    def norm(self, module: str, x: Value) -> Value:
        modules = () if self.config.norm_gain_folded else (module,)
        return self.op("rms_norm", module, x.columns, (x,), modules, x.rows, epsilon=float(self.config.norm_epsilon))

    def linear(self, module: str, x: Value, n: int, bias: bool, weight: str | None = None) -> Value:
        attributes: dict[str, Attribute] = {"n": n, "k": x.columns, "has_bias": int(bias), "epilogue": "none"}
        return self.op("linear", module, n, (x,), (weight or module,), x.rows, **attributes)

    def attention(self, layer: int, x: Value) -> Value:
        c, prefix = self.config, f"transformer.layers.{layer}."
        heads = c.num_attention_heads * c.head_size
        qkv = self.linear(prefix + "attention.qkv", x, c.qkv_size, c.qkv_bias)
        rotated = self.op("rope", prefix + "attention.rope", c.qkv_size, (qkv,), layer=layer)
        q = self.op("kv_append", prefix + "attention.q", heads, (rotated,), layer=layer)
        scale = c.head_size**-0.5
        y = self.op("paged_attention", prefix + "attention", heads, (q,), layer=layer, scale=scale)
        return self.linear(prefix + "attention.dense", y, c.hidden_size, c.dense_bias)

    def mlp(self, layer: int, x: Value) -> Value:
        c, prefix = self.config, f"transformer.layers.{layer}.mlp"
        gate = self.linear(prefix + ".fc", x, c.intermediate_size, c.mlp_bias)
        up = self.linear(prefix + ".gate", x, c.intermediate_size, c.mlp_bias)
        h = self.op("gated_activation", prefix + ".act", c.intermediate_size, (gate, up), activation=c.hidden_act)
        return self.linear(prefix + ".proj", h, c.hidden_size, c.mlp_bias)


def decoder(config: ModelConfig) -> Graph:
    """The plain graph of a pre-norm decoder: nothing merged, fused or quantized; passes do that. It reads every tensor
    of the checkpoint.

    `fc` is the gate (its output goes through the activation) and `gate` the up projection, as TensorRT-LLM names them.
    """
    b = _Builder(config)
    x = b.op("embed", "embed", config.hidden_size, (), ("transformer.vocab_embedding",), scale=1.0, learned_positions=0)
    for layer in range(config.num_hidden_layers):
        prefix = f"transformer.layers.{layer}."
        y = b.attention(layer, b.norm(prefix + "input_layernorm", x))
        x = b.op("add", prefix + "attention.residual", config.hidden_size, (x, y))
        y = b.mlp(layer, b.norm(prefix + "post_layernorm", x))
        x = b.op("add", prefix + "mlp.residual", config.hidden_size, (x, y))
    last = b.op("gather_rows", "last", config.hidden_size, (x,), rows="S")
    head = "transformer.vocab_embedding" if config.tie_word_embeddings else "lm_head"
    b.linear("logits", b.norm("transformer.ln_f", last), config.vocab_size, False, weight=head)
    graph = Graph(tuple(b.ops))
    graph.check_weights(tensor_shapes(config))
    return graph
