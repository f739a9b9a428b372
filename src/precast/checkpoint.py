"""The checkpoint format as code (docs/checkpoint-format.md): the one home of its keys and tensor names.

`quantize` writes it, `builder` reads it; nothing else passes between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precast.errors import CheckpointError
from precast.json_file import read_object

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

# Names of a layer's tensors are made before the weights are looked at: a damaged number must not make billions.
MAX_LAYERS = 10_000


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
class ModelConfig:
    """A decoder, described completely; the fields are the keys of config.json."""

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
    norm_gain_folded: bool = False
    hidden_act: str = "silu"
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    quantization: Quantization = field(default_factory=Quantization)
    rotation: dict[str, Any] | None = None
    mapping: dict[str, int] = field(default_factory=lambda: dict(ONE_RANK))
    pretrained_config: dict[str, Any] = field(default_factory=dict)

    @property
    def qkv_size(self) -> int:
        """Rows of the merged q/k/v projection."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_size

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
            config = cls(**given, quantization=Quantization(**quantization))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where} is not a complete checkpoint config: {error}") from None
        _check(config, where)
        return config


_POSITIVE_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_size",
    "max_position_embeddings",
    "rotary_dim",
)
_FLAGS = ("norm_gain_folded", "qkv_bias", "dense_bias", "mlp_bias", "tie_word_embeddings")
# Keys whose other values would change the model, and are not supported so far.
_ONLY = {"hidden_act": ("silu",), "dtype": ("float32", "bfloat16"), "mapping": (ONE_RANK,)}
_ONLY_QUANTIZATION = {"quant_algo": (None, "W8A8_DYNAMIC"), "kv_cache_quant_algo": (None,), "group_size": (None,)}


def _check(config: ModelConfig, where: str) -> None:
    for name in _POSITIVE_INTEGERS:
        number = getattr(config, name)
        if type(number) is not int or not 0 < number < 1 << 31:
            raise CheckpointError(f"{where}: {name} must be a positive integer, not {number!r}")
    for name in ("norm_epsilon", "rotary_base"):
        if not _is_positive(getattr(config, name)):
            raise CheckpointError(f"{where}: {name} must be a positive number, not {getattr(config, name)!r}")
    for name in _FLAGS:
        if not isinstance(getattr(config, name), bool):
            raise CheckpointError(f"{where}: {name} must be true or false, not {getattr(config, name)!r}")
    for owner, allowed in ((config, _ONLY), (config.quantization, _ONLY_QUANTIZATION)):
        for name, values in allowed.items():
            if getattr(owner, name) not in values:
                told = " or ".join(map(str, values))
                raise CheckpointError(f"{where}: {name} {getattr(owner, name)!r} is not supported; {told} is")
    if config.num_hidden_layers > MAX_LAYERS:
        raise CheckpointError(f"{where}: {config.num_hidden_layers} layers; at most {MAX_LAYERS} are supported")
    if config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(f"{where}: num_attention_heads must be a multiple of num_key_value_heads")
    if config.rotary_dim % 2 or config.rotary_dim > config.head_size:
        raise CheckpointError(f"{where}: rotary_dim must be even and at most head_size")
    _check_objects(config, where)


def _check_objects(config: ModelConfig, where: str) -> None:
    """Values that are objects or lists. Which rope types there are is the builder's to know (builder/rope.py)."""
    scaling = config.rotary_scaling
    if scaling is not None and not (
        isinstance(scaling, dict)
        and isinstance(scaling.get("type"), str)
        and all(key == "type" or isinstance(value, bool) or _is_positive(value) for key, value in scaling.items())
    ):
        raise CheckpointError(f"{where}: rotary_scaling must hold a type and positive numbers, not {scaling!r}")
    if config.rotation is not None and not isinstance(config.rotation, dict):
        raise CheckpointError(f"{where}: rotation must be null or an object")
    if not isinstance(config.pretrained_config, dict):
        raise CheckpointError(f"{where}: pretrained_config must be an object")
    group = config.quantization.activation_group_size
    if type(group) is not int or not 0 <= group < 1 << 31:
        raise CheckpointError(f"{where}: activation_group_size must be a whole number, not {group!r}")
    if not all(isinstance(pattern, str) for pattern in config.quantization.exclude_modules):
        raise CheckpointError(f"{where}: exclude_modules must hold texts")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def read_config(folder: Path) -> ModelConfig:
    """Reads `folder`/config.json. Raises CheckpointError when it is missing, not JSON, or not ours."""
    path = folder / "config.json"
    if not path.exists():
        raise CheckpointError(f"{folder} has no config.json: not a checkpoint")
    return ModelConfig.from_json(read_object(path, CheckpointError), str(path))


def side_files(folder: Path) -> list[str]:
    """The SIDE_FILES that `folder` has, as paths in it."""
    found = (path for pattern in SIDE_FILES for path in sorted(folder.glob(pattern)) if path.is_file())
    return [str(path.relative_to(folder)) for path in found]


def is_quantized(config: ModelConfig, module: str) -> bool:
    """Whether the linear `module` is stored quantized."""
    excluded = any(fnmatchcase(module, pattern) for pattern in config.quantization.exclude_modules)
    return config.quantization.quant_algo is not None and not excluded


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every tensor of a checkpoint with this config: name → (safetensors dtype, shape). No more, no less is stored."""
    dtype = {"float32": "F32", "bfloat16": "BF16"}[config.dtype]
    h, i = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_size
    out: dict[str, tuple[str, tuple[int, ...]]] = {}

    def linear(module: str, n: int, k: int, bias: bool) -> None:
        if is_quantized(config, module):
            out[f"{module}.weight"] = ("I8", (n, k))
            out[f"{module}.per_channel_scale"] = ("F32", (n,))
        else:
            out[f"{module}.weight"] = (dtype, (n, k))
        if bias:
            out[f"{module}.bias"] = (dtype, (n,))

    def norm(module: str) -> None:
        if not config.norm_gain_folded:
            out[f"{module}.weight"] = (dtype, (h,))

    if config.tie_word_embeddings:
        linear("transformer.vocab_embedding", config.vocab_size, h, False)
    else:
        out["transformer.vocab_embedding.weight"] = (dtype, (config.vocab_size, h))
    for layer in range(config.num_hidden_layers):
        prefix = f"transformer.layers.{layer}."
        norm(prefix + "input_layernorm")
        linear(prefix + "attention.qkv", config.qkv_size, h, config.qkv_bias)
        linear(prefix + "attention.dense", h, heads, config.dense_bias)
        norm(prefix + "post_layernorm")
        linear(prefix + "mlp.fc", i, h, config.mlp_bias)
        linear(prefix + "mlp.gate", i, h, config.mlp_bias)
        linear(prefix + "mlp.proj", h, i, config.mlp_bias)
    norm("transformer.ln_f")
    if not config.tie_word_embeddings:
        linear("lm_head", config.vocab_size, h, False)
    return out
