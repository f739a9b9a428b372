"""What a family description holds, and how a Hugging Face config is read with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from precast.checkpoint import ModelConfig
from precast.checkpoint_rules import model_faults
from precast.errors import SourceError
from precast.quantize.families.config_reader import ConfigReader
from precast.quantize.families.rope_settings import Rope

Read = dict[str, Any]
"""ModelConfig's fields that were read so far, in the order of the description."""

Computed = Callable[[ConfigReader, Read], Any]
"""A field's value (a tuple of fields: a tuple of values), made of the config's keys and of fields read before."""


@dataclass(frozen=True)
class Key:
    """A field that stands in config.json under `name`; `kind`: the method of ConfigReader that reads it.

    `default` None: the key must be there, or may be null for a kind with `_or_none`.
    """

    name: str
    kind: str = "integer"
    default: Any = None


Settings = Mapping[str | tuple[str, ...], Any]
"""Field of ModelConfig → Key, Computed, or the value that all models of the family have. Later ones replace earlier."""

STANDARD: Settings = {
    "vocab_size": Key("vocab_size"),
    "hidden_size": Key("hidden_size"),
    "intermediate_size": Key("intermediate_size"),
    "num_hidden_layers": Key("num_hidden_layers", "layers"),
    "num_attention_heads": Key("num_attention_heads"),
    "num_key_value_heads": lambda c, m: c.integer("num_key_value_heads", m["num_attention_heads"]),
    "head_size": lambda c, m: c.integer("head_dim", default_head_size(m)),
    "max_position_embeddings": Key("max_position_embeddings", default=2048),
    "norm_epsilon": Key("rms_norm_eps", "number", 1e-6),
    "hidden_act": Key("hidden_act", "activation", "silu"),
    "tie_word_embeddings": Key("tie_word_embeddings", "flag", False),
}
"""What most families have, under the names and with the defaults that most use."""


def same_as(field: str) -> Computed:
    """Of a field that always equals another one, which is read before it."""
    return lambda c, m: m[field]


ATTENTION_BIAS: Settings = {"qkv_bias": Key("attention_bias", "flag", False), "dense_bias": same_as("qkv_bias")}


@dataclass(frozen=True)
class Selection:
    """Some rows of a source tensor of `of` rows, in the order of the checkpoint."""

    of: int
    rows: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """A source module whose tensors, or rows of them, become rows of a checkpoint module's.

    `module`: with `{i}` for the layer and `{e}` for the expert. `select`: which rows (None: all). `transposed`: the
    source keeps its weight as [in, out]. `plus` is added to the weight: a norm whose gain is 1 + what is stored.
    `flat`: the source's vector has more than one dimension.
    """

    module: str
    select: Callable[[ModelConfig], Selection] | None = None
    transposed: bool = False
    plus: float = 0.0
    flat: bool = False


Parts = str | Part | tuple[str | Part, ...] | Callable[[ModelConfig], tuple[Part, ...]]


@dataclass(frozen=True)
class Gguf:
    """How the models of a family stand in GGUF files.

    `name`: the architecture. `tensors`: tensor stems (layers as `blk.{i}.x`) → the source's modules; `permuted`: the
    last parts of those whose rows are permuted per head. `keys`: keys of config.json → fields that only this
    architecture has; `more` gives keys that follow from others.
    """

    name: str
    tensors: Mapping[str, str]
    permuted: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Read], Read] | None = None


@dataclass(frozen=True)
class Family:
    """One model family.

    `renamed` (the family's key → the usual one), `settings` over STANDARD, `rope` (None: positions come otherwise) and
    `only` (key → the values that are supported) say how config.json is read; `unused` keys change nothing here.
    `modules` and `layer_modules` map checkpoint modules to the source's; the base model's own checkpoints lack the
    prefix `base`. `ignored`: tensors that follow from the config. `gguf` None: GGUF files of it are not read. `title`
    and `models` are for people.
    """

    model_type: str
    architecture: str
    title: str
    models: str
    settings: Settings
    rope: Rope | None
    modules: Mapping[str, Parts]
    layer_modules: Mapping[str, Parts]
    base: str = "model."
    renamed: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq",)  # a buffer that old transformers saved
    gguf: Gguf | None = None

    def read(self, config: dict[str, Any], dtype: str, where: str) -> ModelConfig:
        """A Hugging Face config as a checkpoint's config; `where` is for messages.

        Raises SourceError for a key that is missing, of a wrong type, unknown, or not supported.
        """
        c = ConfigReader(config, where, self.renamed)
        read: Read = {"architecture": self.architecture, "dtype": dtype, "rotary_base": 10000.0, "rotary_dim": 0}
        for fields, setting in {**STANDARD, **self.settings}.items():
            value = _read(setting, c, read)
            read |= dict(zip(fields, value, strict=True)) if isinstance(fields, tuple) else {fields: value}
        if self.rope is not None and read.get("position_embedding_type", "rope") == "rope":
            read |= c.rope(self.rope, read)
        for key, values in self.only.items():
            c.only(key, *values)
        c.finish(self.unused)
        model = ModelConfig(**read, pretrained_config=config)
        if faults := model_faults(model):
            raise SourceError(f"{where}: {faults[0]}")
        return model

    def parts(self, module: str, config: ModelConfig) -> tuple[Part, ...]:
        """The source's parts of a checkpoint module, their names complete."""
        if module in self.modules:
            return _parts(self.modules[module], config, "", "")
        _, _, layer, name = module.split(".", 3)
        expert = ""
        if name.startswith("mlp.experts."):
            _, _, expert, name = name.split(".", 3)
            name = "mlp.experts.{e}." + name
        return _parts(self.layer_modules[name], config, layer, expert)


def default_head_size(m: Read) -> int:
    """The hidden size shared out among the heads."""
    return max(1, int(m["hidden_size"]) // int(m["num_attention_heads"]))


def _read(setting: Any, c: ConfigReader, read: Read) -> Any:
    if isinstance(setting, Key):
        return getattr(c, setting.kind)(setting.name, setting.default)
    return setting(c, read) if callable(setting) else setting


def _parts(parts: Parts, config: ModelConfig, layer: str, expert: str) -> tuple[Part, ...]:
    if callable(parts):
        parts = parts(config)
    listed = (parts,) if isinstance(parts, str | Part) else parts
    whole = (Part(part) if isinstance(part, str) else part for part in listed)
    return tuple(
        Part(p.module.replace("{i}", layer).replace("{e}", expert), p.select, p.transposed, p.plus, p.flat)
        for p in whole
    )
