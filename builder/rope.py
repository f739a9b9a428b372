"""Inverse frequencies of rotary embeddings, fixed at build.

Computed in float32 in the order that transformers computes them, but for the powers: those are rounded from float64, so
that an engine is the same whatever machine built it. torch's float32 powers, and so transformers' frequencies, are in
single places off by one in the last bit, in others on every kind of CPU.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from precast.checkpoint import ModelConfig
from precast.errors import BuildError

F32 = npt.NDArray[np.float32]

TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def inverse_frequencies(config: ModelConfig, max_seq_len: int, local: bool = False) -> tuple[F32, float]:
    """→ (inverse frequencies f32 [rotary_dim/2] in radians a position, factor that multiplies cos and sin).

    `local`: of the sliding layers. `dynamic` and `longrope` depend on the length; they are fixed for `max_seq_len`.
    Raises BuildError for an unknown scaling type.
    """
    if local:
        assert config.local_rotary_base is not None
        config = replace(config, rotary_base=config.local_rotary_base, rotary_scaling=config.local_rotary_scaling)
    scaling = config.rotary_scaling or {}
    kind = scaling.get("type", "default")
    try:
        with np.errstate(all="ignore"):
            frequencies, factor = _scaled(kind, config, scaling, max_seq_len)
    except KeyError as error:
        raise BuildError(f"rotary_scaling of type {kind} lacks {error}") from None
    except (ArithmeticError, ValueError):
        frequencies, factor = np.full(1, np.nan, np.float32), 1.0
    if not (np.isfinite(frequencies).all() and math.isfinite(factor)):
        raise BuildError(
            f"rotary_base {config.rotary_base} and rotary_scaling {scaling} give no finite frequencies; correct the "
            "model's config.json"
        )
    return frequencies, factor


def _scaled(kind: Any, config: ModelConfig, scaling: dict[str, Any], max_seq_len: int) -> tuple[F32, float]:
    plain = _plain(config.rotary_base, config.rotary_dim)
    match kind:
        case "default":
            return plain, 1.0
        case "linear":
            return (plain / np.float32(scaling["factor"])).astype(np.float32), 1.0
        case "dynamic":
            return _dynamic(config, scaling, max_seq_len), 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(config, scaling)
        case "longrope":
            return _longrope(config, scaling, max_seq_len)
    raise BuildError(f"rotary_scaling type {kind!r} is not supported; {', '.join(TYPES)} are")


def _plain(base: float, dim: int) -> F32:
    return (np.float32(1) / _powers(base, dim)).astype(np.float32)


def _powers(base: float, dim: int) -> F32:
    """base^(0/dim), base^(2/dim), …"""
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.power(np.float64(np.float32(base)), exponent.astype(np.float64)).astype(np.float32)


def _dynamic(config: ModelConfig, scaling: dict[str, Any], max_seq_len: int) -> F32:
    """NTK-aware scaling of the base, for a sequence of max_seq_len tokens."""
    dim, factor, limit = config.rotary_dim, scaling["factor"], config.max_position_embeddings
    length = max(max_seq_len, limit)
    base = config.rotary_base * ((factor * length / limit) - (factor - 1)) ** (dim / (dim - 2))
    return _plain(base, dim)


def _llama3(plain: F32, scaling: dict[str, Any]) -> F32:
    """Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    one = np.float32(1)  # torch divides a number by a tensor as number · (1 / tensor), which rounds twice
    wavelength = one / plain * np.float32(2 * math.pi)
    scaled = np.where(wavelength > original / low, plain / np.float32(factor), plain)
    smooth = (one / wavelength * np.float32(original) - np.float32(low)) / np.float32(high - low)
    blended = (1 - smooth) * scaled / np.float32(factor) + smooth * scaled
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return np.where(between, blended, scaled).astype(np.float32)


def _yarn(config: ModelConfig, scaling: dict[str, Any]) -> tuple[F32, float]:
    """YaRN (Peng et al., 2023, arXiv:2309.00071): per-dimension blend of interpolation and extrapolation."""
    dim, base, factor = config.rotary_dim, config.rotary_base, scaling["factor"]
    original = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
    mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")

    def get_mscale(scale: float, m: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        attention = get_mscale(factor)
        if mscale and mscale_all:
            attention = get_mscale(factor, mscale) / get_mscale(factor, mscale_all)

    def correction(rotations: float) -> float:
        return (dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = correction(scaling.get("beta_fast") or 32), correction(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    power = _powers(base, dim)
    extrapolated, interpolated = np.float32(1) / power, np.float32(1) / (np.float32(factor) * power)
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    keep = (1 - ramp).astype(np.float32)
    return (interpolated * (1 - keep) + extrapolated * keep).astype(np.float32), float(attention)


def _longrope(config: ModelConfig, scaling: dict[str, Any], max_seq_len: int) -> tuple[F32, float]:
    """LongRoPE (Ding et al., 2024, arXiv:2402.13753): a divisor for each frequency, one list for sequences within the
    original length and one for longer ones. A sequence keeps one of them for its life: that of max_seq_len."""
    original, factor = scaling["original_max_position_embeddings"], scaling.get("factor")
    factor = config.max_position_embeddings / original if factor is None else factor
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    divisors = np.asarray(scaling["long_factor" if max_seq_len > original else "short_factor"], np.float32)
    power = _powers(config.rotary_base, config.rotary_dim)
    if divisors.shape != power.shape:
        raise BuildError(f"longrope needs {len(power)} factors, and has {divisors.size}")
    return (np.float32(1) / (divisors * power)).astype(np.float32), float(attention)
