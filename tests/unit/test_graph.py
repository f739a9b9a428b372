"""The graph refuses what is not a program over the checkpoint's weights; the decoder reads every weight once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precast.builder.graph import Graph, Op, Value
from precast.builder.models.decoder import decoder
from precast.checkpoint import ModelConfig, Quantization, tensor_shapes

X = Value("x", "T", 8)
EMBED = Op("embed", (), (X,), ("embedding",))
LINEAR = {"n": 6, "k": 8, "has_bias": 0, "epilogue": "none"}


def config(**changes: object) -> ModelConfig:
    plain = ModelConfig(
        architecture="LlamaForCausalLM",
        dtype="float32",
        vocab_size=48,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_size=8,
        max_position_embeddings=64,
        norm_epsilon=1e-6,
        rotary_base=10000.0,
        rotary_dim=8,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[str, list[Op]]] = {
    "no ops": ("without ops", []),
    "an unknown op": ("unknown op 'conv'", [EMBED, Op("conv", (X,), (Value("y", "T", 8),))]),
    "a wrong number of inputs": ("inputs", [EMBED, Op("add", (X,), (Value("y", "T", 8),))]),
    "a value before it is defined": ("before it is defined", [Op("rms_norm", (X,), (Value("y", "T", 8),))]),
    "a value defined twice": ("defined twice", [EMBED, Op("rms_norm", (X,), (X,))]),
    "a known name of another shape": (
        "before it is defined",
        [EMBED, Op("rms_norm", (replace(X, columns=9),), (Value("y", "T", 9),))],
    ),
    "a norm that changes columns": ("wrong shapes", [EMBED, Op("rms_norm", (X,), (Value("y", "T", 9),))]),
    "a linear of another k": (
        "wrong shapes",
        [EMBED, Op("linear", (X,), (Value("y", "T", 6),), ("m",), LINEAR | {"k": 7})],
    ),
    "a linear of another n": ("wrong shapes", [EMBED, Op("linear", (X,), (Value("y", "T", 7),), ("m",), LINEAR)]),
    "a residual without the epilogue": (
        "wrong shapes",
        [EMBED, Op("linear", (X, X), (Value("y", "T", 8),), ("m",), LINEAR | {"n": 8})],
    ),
    "a gated linear of one module": (
        "wrong shapes",
        [EMBED, Op("linear", (X,), (Value("y", "T", 3),), ("m",), LINEAR | {"epilogue": "gated"})],
    ),
    "rows that appear from nowhere": ("wrong shapes", [EMBED, Op("rms_norm", (X,), (Value("y", "S", 8),))]),
    "a quantize that leaves f32": ("wrong shapes", [EMBED, Op("quantize", (X,), (Value("y", "T", 8),))]),
    "int8 into a sum": (
        "dtypes",
        [
            EMBED,
            Op("quantize", (X,), (Value("q", "T", 8, "i8"),)),
            Op("add", (Value("q", "T", 8, "i8"), X), (Value("y", "T", 8),)),
        ],
    ),
    "int8 out of a linear": (
        "dtypes",
        [EMBED, Op("linear", (X,), (Value("y", "T", 6, "i8"),), ("m",), LINEAR)],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_refuses(name: str) -> None:
    message, ops = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        Graph(tuple(ops))


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"norm_gain_folded": True}, {"qkv_bias": True, "mlp_bias": True}],
    ids=["plain", "tied", "folded norms", "biases"],
)
@pytest.mark.parametrize("quantized", [False, True])
def test_the_decoder_reads_every_tensor(changes: dict[str, object], quantized: bool) -> None:
    quantization = Quantization("W8A8_DYNAMIC" if quantized else None)
    made = config(quantization=quantization, **changes)
    graph = decoder(made)
    assert graph.modules() == {name.rpartition(".")[0] for name in tensor_shapes(made)}
    logits = graph.ops[-1].outputs[0]
    assert (logits.rows, logits.columns) == ("S", made.vocab_size)


def test_an_unread_tensor_is_named() -> None:
    graph = decoder(config())
    with pytest.raises(ValueError, match=r"reads no tensor of transformer\.extra"):
        graph.check_weights([*tensor_shapes(config()), "transformer.extra.weight"])


def test_a_tensor_that_is_not_there_is_named() -> None:
    tensors = [name for name in tensor_shapes(config()) if not name.startswith("lm_head")]
    with pytest.raises(ValueError, match="reads lm_head"):
        decoder(config()).check_weights(tensors)
