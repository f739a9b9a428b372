"""report.json: the measured quality of the quantized weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from precast.checkpoint import ModelConfig

WORST = 5


def report(config: ModelConfig, powers: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """The settings, and the signal-to-quantization-noise ratio 10·log₁₀(Σ w² / Σ (w − ŵ)²) of each quantized weight.

    `powers`: module → the two sums. A rotated weight is compared with the rotated original. A ratio of null: no noise.
    """
    ratios = {module: _decibel(*sums) for module, sums in powers.items()}
    signal, noise = (sum(sums[i] for sums in powers.values()) for i in (0, 1))
    measured = sorted((value, module) for module, value in ratios.items() if value is not None)
    return {
        "dtype": config.dtype,
        "quant_algo": config.quantization.quant_algo,
        "activation_group_size": config.quantization.activation_group_size,
        "exclude_modules": list(config.quantization.exclude_modules),
        "rotation": config.rotation,
        "weight_sqnr_db": ratios,
        "weight_sqnr_db_overall": _decibel(signal, noise),
        "worst": [module for _, module in measured[:WORST]],
    }


def _decibel(signal: float, noise: float) -> float | None:
    return round(10 * math.log10(signal / noise), 2) if signal and noise else None
