"""Rope settings of transformers 4.x (`rope_theta`, `rope_scaling`, …) and 5.x (`rope_parameters`), as one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precast.errors import SourceError

Settings = dict[str, Any]

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Rope:
    """How a family names its rope settings, and their defaults.

    `partial`: the default share of each head that rotates; None: all of it, and transformers reads no other share.
    `original`: the default of original_max_position_embeddings outside the settings, which goes before the one in them.
    `local_base`: the default base of sliding layers, which stands under `local_base_key` in 4.x; None: all layers share
    one rope. `renamed`: rope types under another name.
    """

    base: float = 10000.0
    partial: float | None = None
    base_key: str = "rope_theta"
    partial_key: str = "partial_rotary_factor"
    original: int | None = None
    local_base: float | None = None
    local_base_key: str = "rope_local_base_freq"
    renamed: Mapping[str, str] = field(default_factory=dict)


def read_rope(left: Settings, rope: Rope, read: Settings, where: str) -> Settings:
    """Takes the rope's keys out of `left` → `rotary_base`, `rotary_dim`, `rotary_scaling`, and for a family whose
    sliding layers rotate otherwise `local_rotary_base` and `local_rotary_scaling`.

    `read`: ModelConfig's fields that the rope depends on. Raises SourceError for what is unknown or cannot be.
    """
    theta = left.pop(rope.base_key, None)
    partial = left.pop(rope.partial_key, None)
    original = left.pop("original_max_position_embeddings", None) or rope.original
    old, new = left.pop("rope_scaling", None), left.pop("rope_parameters", None)
    local_theta = left.pop(rope.local_base_key, None) if rope.local_base is not None else None
    for value in (old, new):
        if value is not None and not isinstance(value, dict):
            raise SourceError(f"{where}: rope settings must be an object, not {value!r}")
    if old and new and old != new:
        # transformers 5 takes the older one, 4 does not know the newer, others do the opposite.
        raise SourceError(f"{where}: rope_scaling and rope_parameters contradict each other; leave one of them out")
    nested = bool(new) and new.keys() <= set(LAYER_TYPES)
    if nested and rope.local_base is None:
        raise SourceError(f"{where}: rope settings for each layer type are not supported for this family")
    if new and not nested and rope.local_base is not None:
        raise SourceError(
            f"{where}: rope_parameters must hold the settings of each layer type, {' and '.join(LAYER_TYPES)}"
        )

    def one(settings: Any, base: Any, default: float) -> tuple[float, int, Settings | None]:
        if settings is not None and not isinstance(settings, dict):
            raise SourceError(f"{where}: rope settings must be an object, not {settings!r}")
        chosen = _Defaults(base, default, partial, rope.partial, original)
        return _read_one(dict(settings or {}), chosen, rope, int(read["head_size"]), where)

    if rope.local_base is None:
        base, dim, scaling = one(new or old, theta, rope.base)
        return {"rotary_base": base, "rotary_dim": dim, "rotary_scaling": scaling}
    full, local = (new.get(kind) for kind in LAYER_TYPES) if nested else (new or old, None)
    base, dim, scaling = one(full, theta, rope.base)
    local_base, local_dim, local_scaling = one(local, local_theta, rope.local_base)
    if local_dim != dim:
        raise SourceError(f"{where}: rope over {local_dim} dimensions in sliding layers and {dim} in the others")
    found: Settings = {"rotary_base": base, "rotary_dim": dim, "rotary_scaling": scaling}
    return found | {"local_rotary_base": local_base, "local_rotary_scaling": local_scaling}


@dataclass(frozen=True)
class _Defaults:
    """What holds where the settings themselves say nothing; None: nothing was said outside either."""

    base: Any
    default_base: float
    partial: Any
    default_partial: float | None
    original: Any


def _read_one(
    settings: Settings, outside: _Defaults, rope: Rope, head_size: int, where: str
) -> tuple[float, int, Settings | None]:
    """→ (base, rotary_dim, scaling or None)."""
    settings = {k: v for k, v in settings.items() if v is not None}

    def first(key: str, *values: Any) -> float:
        found = next(v for v in (settings.pop(key, None), *values) if v is not None)
        return positive(found, key, where)

    base = first("rope_theta", outside.base, outside.default_base)
    partial = first("partial_rotary_factor", outside.partial, outside.default_partial, 1.0)
    if partial != 1 and outside.default_partial is None:
        raise SourceError(f"{where}: rope over a part of each head ({partial:g}) is not supported for this family")
    kind = settings.pop("rope_type", None) or settings.get("type") or "default"
    settings.pop("type", None)
    if isinstance(kind, str):
        kind = rope.renamed.get(kind, kind)
    if outside.original is not None and kind in ("llama3", "yarn", "longrope"):
        settings["original_max_position_embeddings"] = outside.original
    dim = int(head_size * partial)
    if partial > 1 or dim < 2 or dim % 2:
        raise SourceError(f"{where}: rope over {dim} of {head_size} dimensions is not supported")
    scaling = _scaling(kind, settings, dim, where)
    return base, dim, None if kind == "default" else {"type": kind, **scaling}


def _scaling(kind: Any, settings: Settings, dim: int, where: str) -> Settings:
    if not isinstance(kind, str) or kind not in ROPE_KEYS:
        raise SourceError(f"{where}: rope type {kind!r} is not supported; {', '.join(ROPE_KEYS)} are")
    if unknown := sorted(settings.keys() - ROPE_KEYS[kind]):
        raise SourceError(f"{where}: rope setting {unknown[0]!r} is not supported for type {kind}")
    if needed := sorted(ROPE_NEEDS[kind] - settings.keys()):
        raise SourceError(f"{where}: rope type {kind} lacks {', '.join(needed)}")
    for key, value in settings.items():
        if key in ("short_factor", "long_factor"):
            if not isinstance(value, list) or len(value) != dim // 2:
                raise SourceError(f"{where}: rope setting {key} must be a list of {dim // 2} numbers")
            settings[key] = [positive(number, f"rope setting {key}", where) for number in value]
        elif not isinstance(value, bool):
            positive(value, f"rope setting {key}", where)
        elif key != "truncate":
            raise SourceError(f"{where}: rope setting {key} must be a number, not {value!r}")
    if kind == "llama3" and not settings["low_freq_factor"] < settings["high_freq_factor"]:
        raise SourceError(f"{where}: rope setting low_freq_factor must be less than high_freq_factor")
    return {} if kind == "default" else settings


def positive(value: Any, key: str, where: str) -> float:
    """`value` as a float. Raises SourceError unless it is a positive number."""
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
    "longrope": {"short_factor", "long_factor", "factor", "attention_factor", "original_max_position_embeddings"},
}
ROPE_NEEDS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": ROPE_KEYS["llama3"],
    "yarn": {"factor"},
    "longrope": {"short_factor", "long_factor", "original_max_position_embeddings"},
}
