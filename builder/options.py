"""What `build` is asked for, and what that means for one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from precast.checkpoint import ModelConfig
from precast.errors import BuildError

DEFAULT_MAX_SEQ_LEN = 4096
"""Where a model allows more, more is asked for: KV pages are reserved by it."""

SHORTEST_SEQ_LEN = 2
"""A token of the prompt and one of the answer."""

LARGEST_BATCH_SIZE = 4096
LARGEST_NUM_TOKENS = 65536
OPTIMIZATION_LEVELS = range(4)


@dataclass(frozen=True)
class BuildOptions:
    """Limits of the engine. max_seq_len None: the model's own, at most 4,096. kv_cache_dtype "auto": bfloat16, or
    float32 for an unquantized float32 checkpoint. optimization_level 0 … 3: how long kernels' choices are timed; no
    result depends on it."""

    target: str = "cpu"
    max_batch_size: int = 32
    max_num_tokens: int = 512
    max_seq_len: int | None = None
    kv_cache_dtype: str = "auto"
    optimization_level: int = 2


@dataclass(frozen=True)
class BuildConfig:
    """BuildOptions with everything decided for one checkpoint; `build_config` of the engine's config.json."""

    target: str
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    kv_cache_dtype: str
    optimization_level: int


def resolve(options: BuildOptions, config: ModelConfig) -> BuildConfig:
    """Raises BuildError for a target or a limit that cannot work."""
    from precast.plugins.kv_append.reference import (
        KV_DTYPES,
        PAGE_TOKENS,
    )  # here: who only looks into the cache needs no numpy

    if options.target != "cpu":
        raise BuildError(f"target {options.target!r} is not supported; this version builds for cpu")
    longest = _longest(config)
    usual = min(config.max_position_embeddings, DEFAULT_MAX_SEQ_LEN)
    max_seq_len = usual if options.max_seq_len is None else options.max_seq_len
    if not SHORTEST_SEQ_LEN <= max_seq_len <= longest:
        raise BuildError(
            f"max_seq_len {max_seq_len} must lie in {SHORTEST_SEQ_LEN} … {longest}, what the model's positions are "
            "made for"
        )
    if not 1 <= options.max_batch_size <= LARGEST_BATCH_SIZE:
        raise BuildError(f"max_batch_size {options.max_batch_size} must lie in 1 … {LARGEST_BATCH_SIZE}")
    if options.max_num_tokens < PAGE_TOKENS:
        raise BuildError(
            f"max_num_tokens {options.max_num_tokens} is less than a KV page of {PAGE_TOKENS} tokens, which a step "
            "must hold"
        )
    if not options.max_batch_size <= options.max_num_tokens <= LARGEST_NUM_TOKENS:
        raise BuildError(
            f"max_num_tokens {options.max_num_tokens} must lie in max_batch_size ({options.max_batch_size}) … "
            f"{LARGEST_NUM_TOKENS}: a step holds one token of every running sequence"
        )
    kv = options.kv_cache_dtype
    if kv == "auto":
        kv = "float32" if config.dtype == "float32" and config.quantization.quant_algo is None else "bfloat16"
    if kv not in KV_DTYPES:
        raise BuildError(f"kv_cache_dtype {kv!r} is not supported; auto, {', '.join(KV_DTYPES)} are")
    if options.optimization_level not in OPTIMIZATION_LEVELS:
        raise BuildError(f"optimization_level {options.optimization_level} must lie in 0 … {OPTIMIZATION_LEVELS[-1]}")
    return BuildConfig(
        options.target,
        options.max_batch_size,
        options.max_num_tokens,
        max_seq_len,
        kv,
        options.optimization_level,
    )


def _longest(config: ModelConfig) -> int:
    """The longest sequence that a model's positions allow; `dynamic` rope stretches them by its factor."""
    scaling = config.rotary_scaling or {}
    factor = scaling.get("factor", 1) if scaling.get("type") == "dynamic" else 1
    return int(config.max_position_embeddings * max(factor, 1))
