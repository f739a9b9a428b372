"""`build`: checkpoint folder → engine folder."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from precast import __version__, files
from precast.builder.targets.cpu import engine as cpu_engine
from precast.builder.weights import Checkpoint
from precast.errors import BuildError
from precast.progress import Progress, silent

FORMAT = "precast-engine"
FORMAT_VERSION = 0

SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Copied from the checkpoint, where they exist."""

DEFAULT_MAX_SEQ_LEN = 4096
"""Where a model allows more, more is asked for: KV pages are reserved by it."""


@dataclass(frozen=True)
class BuildOptions:
    """Limits of the engine. max_seq_len None: the model's own, at most 4,096. kv_cache_dtype "auto": bfloat16, or
    float32 for a float32 checkpoint."""

    target: str = "cpu"
    max_batch_size: int = 32
    max_num_tokens: int = 512
    max_seq_len: int | None = None
    kv_cache_dtype: str = "auto"

    def resolved(self, checkpoint: Checkpoint) -> BuildOptions:
        """With every "auto" decided for this checkpoint. Raises BuildError for limits that cannot work."""
        config = checkpoint.config
        if self.target != "cpu":
            raise BuildError(f"target {self.target!r} is not supported; this version builds for cpu")
        longest = config.max_position_embeddings
        max_seq_len = min(longest, DEFAULT_MAX_SEQ_LEN) if self.max_seq_len is None else self.max_seq_len
        if not 1 <= max_seq_len <= longest:
            raise BuildError(f"max_seq_len {max_seq_len} must lie in 1 … {longest} (max_position_embeddings)")
        if not 1 <= self.max_batch_size <= 4096:
            raise BuildError(f"max_batch_size {self.max_batch_size} must lie in 1 … 4096")
        if not self.max_batch_size <= self.max_num_tokens <= 65536:
            raise BuildError(
                f"max_num_tokens {self.max_num_tokens} must lie in max_batch_size ({self.max_batch_size}) … 65536: "
                "a step holds one token of every running sequence"
            )
        kv = self.kv_cache_dtype
        if kv == "auto":
            kv = "float32" if config.dtype == "float32" and config.quantization.quant_algo is None else "bfloat16"
        if kv not in ("float32", "bfloat16"):
            raise BuildError(f"kv_cache_dtype {kv!r} is not supported; auto, float32 and bfloat16 are")
        return replace(self, max_seq_len=max_seq_len, kv_cache_dtype=kv)


def build(
    checkpoint: Path,
    output_dir: Path,
    options: BuildOptions | None = None,
    progress: Progress = silent,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Compiles a checkpoint folder into an engine folder, which appears whole by one rename or not at all.

    `check` gets the finished folder before the rename; what it raises fails the build. Raises CheckpointError for a
    broken checkpoint and BuildError for settings or a machine that cannot work.
    """
    source = Checkpoint(checkpoint)
    chosen = (options or BuildOptions()).resolved(source)
    plan = cpu_engine.prepare(source, chosen)
    _refuse_without_room(output_dir, plan.size)
    hashed = checkpoint_hash(checkpoint)
    identity = {
        "checkpoint": hashed,
        "isa": plan.isa,
        "kv_cache_dtype": chosen.kv_cache_dtype,
        "rope_max_seq_len": chosen.max_seq_len,
        "kernels": cpu_engine.NUMERICS_VERSION,
    }
    numerics_id = _digest(identity)
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "target": chosen.target,
        "isa": plan.isa,
        "build_config": asdict(chosen),
        "built_by": {"precast": __version__, "cpu": cpu_model()},
        "checkpoint_hash": hashed,
        "numerics_id": numerics_id,
        "build_id": _digest(identity | asdict(chosen) | {"precast": __version__}),
        "tactics": plan.tactics,
        "pretrained_config": source.config.to_json(),
    }
    with files.new_folder(output_dir) as folder:
        plan.write(folder / "rank0.engine", numerics_id, progress)
        for name in SIDE_FILES:
            if (checkpoint / name).is_file():
                files.write_bytes(folder / name, (checkpoint / name).read_bytes())
        files.write_json(folder / "config.json", config)
        if check is not None:
            check(folder)


def checkpoint_hash(folder: Path) -> str:
    """SHA-256 over the checkpoint's config and weights: what fixes the engine's numbers."""
    digest = hashlib.sha256()
    for name in ("config.json", "rank0.safetensors"):
        with open(folder / name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def cpu_model() -> str:
    """The CPU's name, for people and for the build cache's key."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _refuse_without_room(output_dir: Path, size: int) -> None:
    place = output_dir.absolute().parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size + (64 << 20):
        raise BuildError(f"the engine needs {size / 1e9:.2f} GB and {place} has {free / 1e9:.2f} GB free")
