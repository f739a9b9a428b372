"""What the KV cache of an engine takes, and how much fits into a budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precast._native import runtime as native
from precast.builder.engine_file import FORMAT
from precast.errors import EngineError
from precast.json_file import find_config_object, read_object
from precast.runtime.calibration import powers_of_two
from precast.runtime.kv_pools import num_pages, pages_of_sequence
from precast.runtime.memory import available_memory

SHORTEST_LISTED = 256


def limits_of(engine: Path) -> native.ModelLimits:
    """What an engine folder was built for. Raises EngineError for anything else, and where it does not load."""
    if find_config_object(engine / "config.json").get("format") != FORMAT:
        raise EngineError(f"{engine} is not an engine; `precast build` makes one of a checkpoint")
    return native.Engine(engine).limits


@dataclass(frozen=True)
class KvMemory:
    """The KV cache of an engine under a memory budget."""

    bytes_per_token: float
    formula: str
    windows: list[int]
    """Of the layer groups; 0: full attention."""
    pool_bytes: int
    pool_pages: list[int]
    max_batch_size: int
    sequences: list[tuple[int, int]]
    """(tokens, how many sequences of that length the pools hold)."""


def kv_memory(engine: Path, limits: native.ModelLimits, kv_cache_memory: int | None) -> KvMemory:
    """`kv_cache_memory`: bytes; None: what serving would take. Raises EngineError when there is no room for a page."""
    pages = num_pages(limits, kv_cache_memory, available_memory())
    page_bytes = [group.page_bytes for group in limits.groups]
    return KvMemory(
        bytes_per_token=sum(page_bytes) / limits.page_tokens,
        formula=_formula(engine, limits),
        windows=[group.window for group in limits.groups],
        pool_bytes=sum(n * size for n, size in zip(pages, page_bytes, strict=True)),
        pool_pages=pages,
        max_batch_size=limits.max_batch_size,
        sequences=[(n, _fitting(limits, pages, n)) for n in powers_of_two(SHORTEST_LISTED, limits.max_seq_len)],
    )


def _fitting(limits: native.ModelLimits, pages: list[int], length: int) -> int:
    return min(there // each for there, each in zip(pages, pages_of_sequence(limits, length), strict=True))


def _formula(engine: Path, limits: native.ModelLimits) -> str:
    """How the bytes of a token's K and V come about."""
    config = read_object(engine / "config.json", EngineError)
    model, built = config.get("pretrained_config"), config.get("build_config")
    if not isinstance(model, dict) or not isinstance(built, dict):
        raise EngineError(f"{engine / 'config.json'} does not say what the engine was built from; build it again")
    dtype, layers = built.get("kv_cache_dtype"), sum(group.num_layers for group in limits.groups)
    return (
        f"2 (K and V) × {layers} layers × {model.get('num_key_value_heads')} KV heads × "
        f"{model.get('head_size')} of {dtype}" + (" and an f32 scale" if dtype in ("int8", "fp8") else "")
    )
