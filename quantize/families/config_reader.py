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
    "is_llama_config", "rope_interleaved",
))
# fmt: on


class ConfigReader:
    """Takes keys out of a config; `finish` refuses what nobody took."""

    def __init__(self, config: dict[str, Any], where: str) -> None:
        self._left = {k: v for k, v in config.items() if k not in HARMLESS}
        if config.get("rope_interleaved"):
            self._left["rope_interleaved"] = True
        self.where = where

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; `default` when absent or null."""
        value = self._left.pop(key, None)
        value = default if value is None else value
        if type(value) is not int or not 0 < value < 1 << 31:
            raise SourceError(f"{self.where}: {key} must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; `default` when absent or null."""
        value = self._left.pop(key, None)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise SourceError(f"{self.where}: {key} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; `default` when absent or null."""
        value = self._left.pop(key, None)
        value = default if value is None else value
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
        theta = self._left.pop("rope_theta", None)
        old, new = self._left.pop("rope_scaling", None), self._left.pop("rope_parameters", None)
        partial = self._left.pop("partial_rotary_factor", None)
        for value in (old, new):
            if value is not None and not isinstance(value, dict):
                raise SourceError(f"{self.where}: rope settings must be an object, not {value!r}")
        scaling = dict(new if new is not None else old or {})
        theta = scaling.pop("rope_theta", None) or theta or 10000.0
        partial = scaling.pop("partial_rotary_factor", None) or partial or 1.0
        kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
        scaling.pop("type", None)
        allowed = ROPE_KEYS.get(kind)
        if allowed is None:
            raise SourceError(f"{self.where}: rope type {kind!r} is not supported; {', '.join(ROPE_KEYS)} are")
        if unknown := sorted(set(scaling) - allowed):
            raise SourceError(f"{self.where}: rope setting {unknown[0]!r} is not supported for type {kind}")
        for key, value in scaling.items():
            if value is not None and not isinstance(value, bool | int | float):
                raise SourceError(f"{self.where}: rope setting {key} must be a number, not {value!r}")
        scaling = {k: v for k, v in scaling.items() if v is not None}
        needed = ROPE_NEEDS[kind] - scaling.keys()
        if needed:
            raise SourceError(f"{self.where}: rope type {kind} lacks {', '.join(sorted(needed))}")
        return float(theta), int(head_size * partial), None if kind == "default" else {"type": kind, **scaling}

    def finish(self) -> None:
        """Raises SourceError for a key that nobody took."""
        if self._left:
            names = ", ".join(sorted(self._left))
            raise SourceError(f"{self.where}: unknown settings that could change the model: {names}")


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
