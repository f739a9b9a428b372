"""Which layers see a sliding window only: settings that give `sliding_window` and `layer_types`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precast.quantize.families.config_reader import ConfigReader

Windows = tuple[int | None, tuple[str, ...] | None]

FULL, SLIDING = "full_attention", "sliding_attention"


def every_layer(default: int | None = None) -> Callable[[ConfigReader, dict[str, Any]], Windows]:
    """`sliding_window` holds for every layer; null or absent: none (absent: `default`)."""

    def read(c: ConfigReader, m: dict[str, Any]) -> Windows:
        window = c.integer_or_none("sliding_window", default)
        return (window, (SLIDING,) * m["num_hidden_layers"]) if window else (None, None)

    return read


def some_layers(c: ConfigReader, m: dict[str, Any], window: int | None, slides: Callable[[int], bool]) -> Windows:
    """`layer_types` names the layers; without it `slides(layer)` does."""
    layers = c.items("layer_types")
    kinds = tuple(layers) if layers else tuple(SLIDING if slides(i) else FULL for i in range(m["num_hidden_layers"]))
    if SLIDING not in kinds and all(kind == FULL for kind in kinds):
        return None, None
    if window is None:
        raise c.refuse("layer_types names sliding_attention, and there is no sliding_window")
    return window, kinds


def pattern(default: int) -> Callable[[ConfigReader, dict[str, Any]], Windows]:
    """Every `default`-th layer, or every `sliding_window_pattern`-th, sees everything."""

    def read(c: ConfigReader, m: dict[str, Any]) -> Windows:
        every = c.integer("sliding_window_pattern", default)
        return some_layers(c, m, c.integer_or_none("sliding_window", 4096), lambda layer: (layer + 1) % every != 0)

    return read


def when_used(c: ConfigReader, m: dict[str, Any]) -> Windows:
    """Qwen: `use_sliding_window`, and then layers from `max_window_layers` on."""
    used = c.flag("use_sliding_window", False)
    window, first = c.integer_or_none("sliding_window", 4096), c.integer_or_zero("max_window_layers", 28)
    return some_layers(c, m, window if used else None, lambda layer: used and layer >= first)
