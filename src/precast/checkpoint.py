"""The checkpoint format as code (docs/checkpoint-format.md): the one home of its keys and tensor names.

`quantize` writes it, `builder` reads it; nothing else passes between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precast.checkpoint_rules import model_faults
from precast.errors import CheckpointError
from precast.json_file import read_config_object

FORMAT = "precast-checkpoint"
FORMAT_VERSION = 0

SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
)
"""What goes along with the weights from source to checkpoint to engine, where it exists: patterns of paths."""

ONE_RANK = {"world_size": 1, "tp_size": 1, "pp_size": 1}


@dataclass(frozen=True)
class Quantization:
    """How weights and activations are quantized. `quant_algo` None: they are not."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int | None = None
    activation_group_size: int = 0
    exclude_modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class MoeConfig:
    """Mixture of experts: which layers have one, and how tokens are routed. All experts of a layer are gated MLPs."""

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: tuple[int, ...]
    shared_expert_intermediate_size: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """A decoder, described completely; the fields are the keys of config.json. Defaults are what Llama does."""

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    max_position_embeddings: int
    norm_epsilon: float
    rotary_base: float
    rotary_dim: int
    rotary_scaling: dict[str, Any] | None = None
    local_rotary_base: float | None = None
    local_rotary_scaling: dict[str, Any] | None = None
    no_rope_layers: tuple[int, ...] = ()
    position_embedding_type: str = "rope"
    alibi_slopes: tuple[float, ...] | None = None
    norm_type: str = "rms_norm"
    norm_bias: bool = False
    norm_placement: str = "pre"
    norm_gain_folded: bool = False
    embedding_norm: bool = False
    parallel_residual: bool = False
    parallel_shared_norm: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    qk_norm: str | None = None
    clip_qkv: float | None = None
    attention_scale: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    hidden_act: str = "silu"
    gated_mlp: bool = True
    moe: MoeConfig | None = None
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    tie_word_embeddings: bool = False
    quantization: Quantization = field(default_factory=Quantization)
    rotation: dict[str, Any] | None = None
    mapping: dict[str, int] = field(default_factory=lambda: dict(ONE_RANK))
    pretrained_config: dict[str, Any] = field(default_factory=dict)

    @property
    def qkv_size(self) -> int:
        """Rows of the merged q/k/v projection."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_size

    @property
    def qk_norm_sizes(self) -> tuple[int, int]:
        """Elements of the gains of q and of k."""
        if self.qk_norm == "rms_head":
            return self.head_size, self.head_size
        return self.num_attention_heads * self.head_size, self.num_key_value_heads * self.head_size

    def window(self, layer: int) -> int:
        """Positions that a row of this layer sees, itself included; 0: all."""
        sliding = self.layer_types is not None and self.layer_types[layer] == "sliding_attention"
        return (self.sliding_window or 0) if sliding else 0

    def rope(self, layer: int) -> str:
        """Which frequencies this layer rotates with: "none", "global", or "local" (`local_rotary_base`)."""
        if self.position_embedding_type != "rope" or layer in self.no_rope_layers:
            return "none"
        return "local" if self.local_rotary_base is not None and self.window(layer) else "global"

    def to_json(self) -> dict[str, Any]:
        """The content of config.json."""
        from precast import __version__

        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        return head | {"producer": {"name": "precast", "version": __version__}} | asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> ModelConfig:
        """Reads and checks config.json's content; `where` names the file in errors.

        Raises CheckpointError for a foreign format or version, an unknown or missing key, and a value of a wrong type.
        """
        if value.get("format") != FORMAT:
            raise CheckpointError(f"{where} is not a precast checkpoint; make one with `precast convert`")
        if value.get("format_version") != FORMAT_VERSION:
            raise CheckpointError(
                f"{where} has checkpoint format version {value.get('format_version')!r}, this precast reads "
                f"{FORMAT_VERSION}; convert the model again"
            )
        known = {f.name: f for f in fields(cls)}
        given = {k: v for k, v in value.items() if k not in ("format", "format_version", "producer")}
        if unknown := sorted(set(given) - set(known)):
            raise CheckpointError(f"{where} has unknown keys: {', '.join(unknown)}")
        try:
            quantization = dict(given.pop("quantization", {}))
            patterns = quantization.get("exclude_modules", [])
            if not isinstance(patterns, list):
                raise TypeError("exclude_modules must be a list")
            quantization["exclude_modules"] = tuple(patterns)
            for key in ("no_rope_layers", "alibi_slopes", "layer_types"):
                if given.get(key) is not None:
                    given[key] = tuple(given[key])
            if given.get("moe") is not None:
                given["moe"] = MoeConfig(**{**given["moe"], "layers": tuple(given["moe"]["layers"])})
            config = cls(**given, quantization=Quantization(**quantization))
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(f"{where} is not a complete checkpoint config: {error}") from None
        if wrong := model_faults(config):
            raise CheckpointError(f"{where}: {wrong[0]}")
        return config


def read_config(folder: Path) -> ModelConfig:
    """Reads `folder`/config.json. Raises CheckpointError when it is missing, not JSON, or not ours."""
    path = folder / "config.json"
    if not path.exists():
        if not folder.exists():
            raise CheckpointError(f"{folder} does not exist; give a checkpoint folder, which `precast convert` makes")
        raise CheckpointError(f"{folder} has no config.json: not a checkpoint; make one with `precast convert`")
    return ModelConfig.from_json(read_config_object(path, CheckpointError), str(path))


def side_files(folder: Path) -> list[str]:
    """The SIDE_FILES that `folder` has, as paths in it."""
    found = (path for pattern in SIDE_FILES for path in sorted(folder.glob(pattern)) if path.is_file())
    return [str(path.relative_to(folder)) for path in found]


def is_quantized(config: ModelConfig, module: str) -> bool:
    """Whether the linear `module` is stored quantized. What routes tokens to experts never is."""
    if config.quantization.quant_algo is None or module.endswith((".mlp.router", ".mlp.shared_expert_gate")):
        return False
    return not any(fnmatchcase(module, pattern) for pattern in config.quantization.exclude_modules)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every tensor of a checkpoint with this config: name → (safetensors dtype, shape). No more, no less is stored."""
    return _Shapes(config).out


class _Shapes:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.dtype = {"float32": "F32", "bfloat16": "BF16"}[config.dtype]
        self.out: dict[str, tuple[str, tuple[int, ...]]] = {}
        h, vocab = config.hidden_size, config.vocab_size
        if config.tie_word_embeddings:
            self.linear("transformer.vocab_embedding", vocab, h)
        else:
            self.out["transformer.vocab_embedding.weight"] = (self.dtype, (vocab, h))
        if config.position_embedding_type == "learned_absolute":
            shape = (config.max_position_embeddings, h)
            self.out["transformer.position_embedding.weight"] = (self.dtype, shape)
        if config.embedding_norm:
            self.norm("transformer.ln_embed")
        for layer in range(config.num_hidden_layers):
            self.layer(layer)
        self.norm("transformer.ln_f")
        if not config.tie_word_embeddings:
            self.linear("lm_head", vocab, h, config.lm_head_bias)

    def linear(self, module: str, n: int, k: int, bias: bool = False) -> None:
        if is_quantized(self.config, module):
            self.out[f"{module}.weight"] = ("I8", (n, k))
            self.out[f"{module}.per_channel_scale"] = ("F32", (n,))
        else:
            self.out[f"{module}.weight"] = (self.dtype, (n, k))
        if bias:
            self.out[f"{module}.bias"] = (self.dtype, (n,))

    def norm(self, module: str) -> None:
        if not self.config.norm_gain_folded:
            self.out[f"{module}.weight"] = ("F32", (self.config.hidden_size,))
        if self.config.norm_bias:
            self.out[f"{module}.bias"] = ("F32", (self.config.hidden_size,))

    def layer(self, layer: int) -> None:
        c, prefix = self.config, f"transformer.layers.{layer}."
        h, pre, output = c.hidden_size, c.norm_placement != "post", c.norm_placement != "pre"
        if pre:
            self.norm(prefix + "input_layernorm")
        self.linear(prefix + "attention.qkv", c.qkv_size, h, c.qkv_bias)
        if c.qk_norm is not None:
            for name, size in zip("qk", c.qk_norm_sizes, strict=True):
                self.out[f"{prefix}attention.{name}_layernorm.weight"] = ("F32", (size,))
        self.linear(prefix + "attention.dense", h, c.num_attention_heads * c.head_size, c.dense_bias)
        if output:
            self.norm(prefix + "attention.post_layernorm")
        if pre and not c.parallel_shared_norm:
            self.norm(prefix + "post_layernorm")
        if c.moe is not None and layer in c.moe.layers:
            self.experts(prefix + "mlp", c.moe)
        else:
            self.mlp(prefix + "mlp", c.intermediate_size)
        if output:
            self.norm(prefix + "mlp.post_layernorm")

    def mlp(self, module: str, n: int) -> None:
        c = self.config
        self.linear(module + ".fc", n, c.hidden_size, c.mlp_bias)
        if c.gated_mlp:
            self.linear(module + ".gate", n, c.hidden_size, c.mlp_bias)
        self.linear(module + ".proj", c.hidden_size, n, c.mlp_bias)

    def experts(self, module: str, moe: MoeConfig) -> None:
        self.linear(module + ".router", moe.num_experts, self.config.hidden_size)
        for expert in range(moe.num_experts):
            self.mlp(f"{module}.experts.{expert}", moe.intermediate_size)
        if moe.shared_expert_intermediate_size:
            self.mlp(module + ".shared_expert", moe.shared_expert_intermediate_size)
            self.linear(module + ".shared_expert_gate", 1, self.config.hidden_size)
