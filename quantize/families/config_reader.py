"""Reads `config.json` of transformers 4.x and 5.x. A key that could change the maths is understood or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precast.checkpoint_rules import MAX_LAYERS
from precast.errors import SourceError
from precast.quantize.families.rope_settings import Rope, positive, read_rope

# Keys that never change the forward pass of any decoder.
# fmt: off
HARMLESS = frozenset((
    "_name_or_path", "_model_name_or_path", "architectures", "model_type", "torch_dtype", "dtype",
    "transformers_version", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
    "sep_token_id", "decoder_start_token_id", "initializer_range", "attention_dropout", "hidden_dropout",
    "embd_pdrop", "resid_pdrop", "attn_pdrop", "output_attentions", "output_hidden_states", "return_dict",
    "return_dict_in_generate", "problem_type", "id2label", "label2id", "task_specific_params", "tokenizer_class",
    "torchscript", "is_encoder_decoder", "is_decoder", "add_cross_attention", "chunk_size_feed_forward",
    "gradient_checkpointing", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
    "auto_map", "finetuning_task", "prefix", "tie_encoder_decoder", "pruned_heads", "cross_attention_hidden_size",
    "base_model_tp_plan", "transformers.js_config", "unsloth_version", "unsloth_fixed", "chat_template",
    "_commit_hash", "cache_implementation", "classifier_dropout", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "output_router_logits",
    "router_aux_loss_coef", "router_jitter_noise",
))
# fmt: on

# Names of activation functions → the checkpoint's.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu2",
}


class ConfigReader:
    """Takes keys out of a config; `finish` refuses what nobody took."""

    def __init__(self, config: dict[str, Any], where: str, renamed: Mapping[str, str] | None = None) -> None:
        """`renamed`: a key → the one under which it is read. Raises SourceError when both are there and differ."""
        names = renamed or {}
        # An unknown key that is null sets nothing.
        self._left = {k: v for k, v in config.items() if k not in HARMLESS and k not in names and v is not None}
        self._keys = {names.get(key, key) for key in config}
        self.where = where
        for old, new in names.items():
            if (value := config.get(old)) is not None and self._left.setdefault(new, value) != value:
                raise SourceError(f"{where}: {old} = {value!r} and {new} = {self._left[new]!r} contradict each other")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; `default` when absent or null."""
        value = self._take(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise SourceError(f"{self.where}: {key} must be a positive integer, not {value!r}")
        return value

    def layers(self, key: str, default: int | None = None) -> int:
        """A number of layers: bounded, since lists are made of it before the weights are looked at."""
        value = self.integer(key, default)
        if value > MAX_LAYERS:
            raise SourceError(f"{self.where}: {value} layers; at most {MAX_LAYERS} are supported")
        return value

    def integer_or_none(self, key: str, default: int | None = None) -> int | None:
        """A positive integer; `default` when absent, None when null."""
        return self.integer(key, default) if self._has(key, default) else None

    def integer_or_zero(self, key: str, default: int) -> int:
        """An integer from 0 on; `default` when absent or null."""
        if self._left.get(key) == 0 and not isinstance(self._left[key], bool):
            self._left.pop(key)
            return 0
        return self.integer(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; `default` when absent or null."""
        return positive(self._take(key, default), key, self.where)

    def number_or_none(self, key: str, default: float | None = None) -> float | None:
        """A positive number; `default` when absent, None when null."""
        return self.number(key, default) if self._has(key, default) else None

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A boolean; `default` when absent or null."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise SourceError(f"{self.where}: {key} must be true or false, not {value!r}")
        return value

    def activation(self, key: str, default: str | None = None) -> str:
        """An activation function, under the checkpoint's name for it."""
        value = self._take(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise SourceError(f"{self.where}: {key} = {value!r} is not supported; {', '.join(ACTIVATIONS)} are")
        return ACTIVATIONS[value]

    def items(self, key: str) -> list[Any] | None:
        """A list; None when absent or null."""
        value = self._left.pop(key, None)
        if value is not None and not isinstance(value, list):
            raise SourceError(f"{self.where}: {key} must be a list, not {value!r}")
        return value

    def inner(self, key: str) -> ConfigReader:
        """The reader of an object inside; an empty one when absent or null. It must be finished on its own."""
        value = self._left.pop(key, None)
        if value is not None and not isinstance(value, dict):
            raise SourceError(f"{self.where}: {key} must be an object, not {value!r}")
        return ConfigReader(value or {}, f"{self.where}: {key}")

    def only(self, key: str, *allowed: Any) -> None:
        """A key of which only some values are supported; absent or null is fine."""
        value = self._left.pop(key, None)
        if value is not None and value not in allowed:
            values = ", ".join(map(repr, allowed))
            raise SourceError(f"{self.where}: {key} = {value!r} is not supported; {values or 'its absence'} is")

    def rope(self, rope: Rope, read: dict[str, Any]) -> dict[str, Any]:
        """ModelConfig's rope fields; `read`: those read before."""
        return read_rope(self._left, rope, read, self.where)

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        """Raises SourceError for a key that nobody took and that is not `unused`."""
        if left := self._left.keys() - set(unused):
            names = ", ".join(sorted(left))
            raise SourceError(f"{self.where}: unknown settings that could change the model: {names}")

    def refuse(self, what: str) -> SourceError:
        """The error that says `what` of this config."""
        return SourceError(f"{self.where}: {what}")

    def _has(self, key: str, default: Any) -> bool:
        return self._left.get(key) is not None or (key not in self._keys and default is not None)

    def _take(self, key: str, default: Any) -> Any:
        value = self._left.pop(key, None)
        if value is None and default is None:
            raise SourceError(f"{self.where}: config.json lacks {key}")
        return default if value is None else value
