"""Reads `config.json` of transformers 4.x and 5.x. A key that could change the maths is understood or refused."""

from __future__ import annotations

from typing import Any

from precast.errors import SourceError

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
))
# fmt: on


class ConfigReader:
    """Takes keys out of a config; `finish` refuses what nobody took."""

    def __init__(self, config: dict[str, Any], where: str) -> None:
        # An unknown key that is null sets nothing.
        self._left = {k: v for k, v in config.items() if k not in HARMLESS and v is not None}
        self.where = where

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; `default` when absent or null."""
        value = self._take(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise SourceError(f"{self.where}: {key} must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; `default` when absent or null."""
        return _positive(self._take(key, default), key, self.where)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; `default` when absent or null."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise SourceError(f"{self.where}: {key} must be true or false, not {value!r}")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """A key of which only some values are supported; absent or null is fine."""
        value = self._left.pop(key, None)
        if value is not None and value not in allowed:
            raise SourceError(f"{self.where}: {key} = {value!r} is not supported; {', '.join(map(repr, allowed))} is")

    def rope(self, head_size: int) -> tuple[float, int, dict[str, Any] | None]:
        """→ (θ, rotary_dim, scaling or None): 4.x `rope_theta` + `rope_scaling`, 5.x `rope_parameters`."""
        old, new = self._left.pop("rope_scaling", None), self._left.pop("rope_parameters", None)
        settings: dict[str, Any] = {}
        for value in (old, new):  # transformers 5 takes `rope_scaling` as an older name, and the newer one wins
            if value is not None and not isinstance(value, dict):
                raise SourceError(f"{self.where}: rope settings must be an object, not {value!r}")
            settings = value if value else settings
        settings = {k: v for k, v in settings.items() if v is not None}
        theta = settings.pop("rope_theta", self._left.get("rope_theta", 10000.0))
        partial = settings.pop("partial_rotary_factor", self._left.get("partial_rotary_factor", 1.0))
        self._left.pop("rope_theta", None)
        self._left.pop("partial_rotary_factor", None)
        kind = settings.pop("rope_type", None) or settings.get("type") or "default"
        settings.pop("type", None)
        scaling = self._scaling(kind, settings)
        theta, partial = _positive(theta, "rope_theta", self.where), _positive(partial, "partial_rotary", self.where)
        rotary_dim = int(head_size * partial)
        if partial > 1 or rotary_dim < 2 or rotary_dim % 2:
            raise SourceError(f"{self.where}: rope over {rotary_dim} of {head_size} dimensions is not supported")
        return theta, rotary_dim, None if kind == "default" else {"type": kind, **scaling}

    def finish(self) -> None:
        """Raises SourceError for a key that nobody took."""
        if self._left:
            names = ", ".join(sorted(self._left))
            raise SourceError(f"{self.where}: unknown settings that could change the model: {names}")

    def _take(self, key: str, default: Any) -> Any:
        value = self._left.pop(key, None)
        if value is None and default is None:
            raise SourceError(f"{self.where}: config.json lacks {key}")
        return default if value is None else value

    def _scaling(self, kind: Any, settings: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(kind, str) or kind not in ROPE_KEYS:
            raise SourceError(f"{self.where}: rope type {kind!r} is not supported; {', '.join(ROPE_KEYS)} are")
        if unknown := sorted(settings.keys() - ROPE_KEYS[kind]):
            raise SourceError(f"{self.where}: rope setting {unknown[0]!r} is not supported for type {kind}")
        if needed := sorted(ROPE_NEEDS[kind] - settings.keys()):
            raise SourceError(f"{self.where}: rope type {kind} lacks {', '.join(needed)}")
        for key, value in settings.items():
            if not isinstance(value, bool):
                _positive(value, f"rope setting {key}", self.where)
            elif key != "truncate":
                raise SourceError(f"{self.where}: rope setting {key} must be a number, not {value!r}")
        if kind == "llama3" and not settings["low_freq_factor"] < settings["high_freq_factor"]:
            raise SourceError(f"{self.where}: rope setting low_freq_factor must be less than high_freq_factor")
        return settings


def _positive(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise SourceError(f"{where}: {key} must be a positive number, not {value!r}")
    return float(value)


ROPE_KEYS: dict[str, set[str]] = {
    "default": {"original_max_position_embeddings"},
    "linear": {"factor", "original_max_position_embeddings"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}
ROPE_NEEDS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": ROPE_KEYS["llama3"],
    "yarn": {"factor"},
}
