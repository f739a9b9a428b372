"""The one decoder builder: a checkpoint's config → graph. Families differ in their config, not here."""

from __future__ import annotations

from precast.builder.graph import Graph, Op, Rows, Value
from precast.builder.plan import Attribute
from precast.checkpoint import ModelConfig, MoeConfig, tensor_shapes


class _Builder:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.ops: list[Op] = []

    def op(
        self,
        kind: str,
        name: str,
        /,
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
        c = self.config
        attributes: dict[str, Attribute] = {"epsilon": float(c.norm_epsilon)}
        if c.norm_type == "layer_norm":
            attributes |= {"has_gain": int(not c.norm_gain_folded), "has_bias": int(c.norm_bias)}
        modules = () if c.norm_gain_folded else (module,)
        return self.op(c.norm_type, module, x.columns, (x,), modules, x.rows, **attributes)

    def linear(self, module: str, x: Value, n: int, bias: bool, weight: str | None = None) -> Value:
        attributes: dict[str, Attribute] = {"n": n, "k": x.columns, "has_bias": int(bias), "epilogue": "none"}
        return self.op("linear", module, n, (x,), (weight or module,), x.rows, **attributes)

    def scaled(self, name: str, x: Value, factor: float) -> Value:
        return x if factor == 1 else self.op("scale", name, x.columns, (x,), rows=x.rows, factor=float(factor))

    def embed(self) -> Value:
        c = self.config
        learned = c.position_embedding_type == "learned_absolute"
        modules = ("transformer.vocab_embedding", *(("transformer.position_embedding",) if learned else ()))
        scale = float(c.embedding_multiplier)
        x = self.op("embed", "embed", c.hidden_size, (), modules, scale=scale, learned_positions=int(learned))
        return self.norm("transformer.ln_embed", x) if c.embedding_norm else x

    def layer(self, layer: int, x: Value) -> Value:
        """One layer's residual stream in → out."""
        c, prefix = self.config, f"transformer.layers.{layer}."
        pre, output = c.norm_placement != "post", c.norm_placement != "pre"

        def behind(name: str, y: Value) -> Value:
            y = self.norm(f"{prefix}{name}.post_layernorm", y) if output else y
            return self.scaled(f"{prefix}{name}.scaled", y, c.residual_multiplier)

        def add(name: str, a: Value, b: Value) -> Value:
            return self.op("add", f"{prefix}{name}.residual", c.hidden_size, (a, b))

        normed = self.norm(prefix + "input_layernorm", x) if pre else x
        between = add("attention", x, behind("attention", self.attention(layer, normed)))
        read = x if c.parallel_residual else between
        if not c.parallel_shared_norm:
            normed = self.norm(prefix + "post_layernorm", read) if pre else read
        return add("mlp", between, behind("mlp", self.feed_forward(layer, normed)))

    def attention(self, layer: int, x: Value) -> Value:
        c, prefix = self.config, f"transformer.layers.{layer}.attention"
        heads = c.num_attention_heads * c.head_size
        qkv = self.linear(prefix + ".qkv", x, c.qkv_size, c.qkv_bias)
        if c.clip_qkv is not None:
            qkv = self.op("clip", prefix + ".clip", c.qkv_size, (qkv,), clip=float(c.clip_qkv))
        if c.qk_norm is not None:
            modules = (prefix + ".q_layernorm", prefix + ".k_layernorm")
            epsilon = float(c.norm_epsilon)
            qkv = self.op(
                "qk_norm", prefix + ".qk_norm", c.qkv_size, (qkv,), modules, qk_norm=c.qk_norm, epsilon=epsilon
            )
        if (rope := c.rope(layer)) != "none":
            qkv = self.op("rope", prefix + ".rope", c.qkv_size, (qkv,), rope=rope)
        q = self.op("kv_append", prefix + ".q", heads, (qkv,), layer=layer)
        y = self.op(
            "paged_attention",
            prefix,
            heads,
            (q,),
            layer=layer,
            scale=float(c.head_size**-0.5 if c.attention_scale is None else c.attention_scale),
            window=c.window(layer),
            softcap=float(c.attn_logit_softcapping or 0),
            alibi=int(c.position_embedding_type == "alibi"),
        )
        return self.linear(prefix + ".dense", y, c.hidden_size, c.dense_bias)

    def feed_forward(self, layer: int, x: Value) -> Value:
        c, prefix = self.config, f"transformer.layers.{layer}.mlp"
        if c.moe is not None and layer in c.moe.layers:
            return self.experts(prefix, c.moe, x)
        h = self.linear(prefix + ".fc", x, c.intermediate_size, c.mlp_bias)
        if c.gated_mlp:
            up = self.linear(prefix + ".gate", x, c.intermediate_size, c.mlp_bias)
            h = self.op("gated_activation", prefix + ".act", c.intermediate_size, (h, up), activation=c.hidden_act)
        else:
            h = self.op("activation", prefix + ".act", c.intermediate_size, (h,), activation=c.hidden_act)
        return self.linear(prefix + ".proj", h, c.hidden_size, c.mlp_bias)

    def experts(self, prefix: str, moe: MoeConfig, x: Value) -> Value:
        """One op for all of them: router, then fc, gate and proj of each expert, then those of the shared expert and
        its gate."""
        mlps = [f"{prefix}.experts.{expert}" for expert in range(moe.num_experts)]
        shared = moe.shared_expert_intermediate_size
        mlps += [prefix + ".shared_expert"] if shared else []
        modules = [prefix + ".router", *(f"{mlp}.{part}" for mlp in mlps for part in ("fc", "gate", "proj"))]
        modules += [prefix + ".shared_expert_gate"] if shared else []
        return self.op(
            "moe",
            prefix,
            x.columns,
            (x,),
            tuple(modules),
            num_experts=moe.num_experts,
            top_k=moe.num_experts_per_tok,
            norm_topk_prob=int(moe.norm_topk_prob),
            intermediate_size=moe.intermediate_size,
            shared_intermediate_size=shared,
            activation=self.config.hidden_act,
        )


def decoder(config: ModelConfig) -> Graph:
    """The plain graph of a decoder: nothing merged, fused or quantized; passes do that. It reads every tensor of the
    checkpoint.

    `fc` is the gate (its output goes through the activation) and `gate` the up projection, as TensorRT-LLM names them.
    """
    b = _Builder(config)
    x = b.embed()
    for layer in range(config.num_hidden_layers):
        x = b.layer(layer, x)
    last = b.norm("transformer.ln_f", b.op("gather_rows", "last", config.hidden_size, (x,), rows="S"))
    # Before the head there is less to multiply than behind it.
    last = b.scaled("last.scaled", last, config.logits_multiplier)
    head = "transformer.vocab_embedding" if config.tie_word_embeddings else "lm_head"
    logits = b.linear("logits", last, config.vocab_size, config.lm_head_bias, weight=head)
    if (cap := config.final_logit_softcapping) is not None:
        b.op("softcap", "logits.capped", config.vocab_size, (logits,), rows="S", cap=float(cap))
    graph = Graph(tuple(b.ops))
    graph.check_weights(tensor_shapes(config))
    return graph
