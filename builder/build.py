"""`build`: checkpoint folder → engine folder."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast import __version__, files
from precast.builder.engine_file import FORMAT, FORMAT_VERSION
from precast.builder.options import BuildConfig, BuildOptions, resolve
from precast.builder.targets.cpu import NUMERICS_VERSION
from precast.checkpoint import side_files
from precast.errors import BuildError
from precast.progress import Progress, silent

if TYPE_CHECKING:
    from precast.builder.targets.cpu.engine import CpuEngine
    from precast.builder.targets.cpu.memory import MemoryNeed
    from precast.builder.weights import Checkpoint


def build(
    checkpoint: Path,
    output_dir: Path,
    options: BuildOptions | None = None,
    progress: Progress = silent,
    *,
    prefixes: Sequence[Sequence[int]] = (),
    check: Callable[[Path], None] | None = None,
    available_memory: int | None = None,
) -> None:
    """Compiles a checkpoint folder into an engine folder, which appears whole by one rename or not at all.

    `prefixes`: tokens of prompts' beginnings that `check` adds the K/V of. It gets the finished folder before the
    rename; what it raises fails the build. `available_memory`: bytes that
    building and serving may take (None: not checked). The same checkpoint, options, machine and timings give the same
    bytes. Raises CheckpointError for a broken checkpoint and BuildError for settings or a machine that cannot work,
    both before a weight is read.
    """
    files.refuse_foreign(output_dir, replaces=FORMAT)
    # Imported here: who only looks into the build cache waits for none of it.
    from precast.builder.targets.cpu import engine as cpu_engine
    from precast.builder.weights import Checkpoint

    source = Checkpoint(checkpoint)
    config = resolve(options or BuildOptions(), source.config)
    engine = cpu_engine.prepare(source, config)
    files.require_room(output_dir, engine.size)
    if available_memory is not None:
        refuse_without_memory(engine.memory, config, available_memory)
    engine = cpu_engine.with_tactics(engine, cpu_model(), config.optimization_level, progress)
    description = _describe(source, config, engine, prefixes)
    with files.new_folder(output_dir, replaces=FORMAT) as folder:
        engine.write(folder / "rank0.engine", description["numerics_id"], progress)
        files.copy(checkpoint, folder, side_files(checkpoint))
        files.write_json(folder / "config.json", description)
        if check is not None:
            check(folder)


def _describe(
    source: Checkpoint, config: BuildConfig, engine: CpuEngine, prefixes: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The engine's config.json."""
    hashed = checkpoint_hash(source.folder)
    numerics = {
        "checkpoint": hashed,
        "isa": engine.isa,
        "kv_cache_dtype": config.kv_cache_dtype,
        "rope": engine.rope_digest,
        "kernels": NUMERICS_VERSION,
    }
    # What was chosen, and not how long it took.
    choices = {key: shape["choice"] for key, shape in engine.tactics.get("shapes", {}).items()}
    everything = numerics | asdict(config) | {"precast": __version__, "tactics": choices, "prefixes": prefixes}
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "target": config.target,
        "isa": engine.isa,
        "build_config": asdict(config),
        "built_by": {"precast": __version__, "cpu": cpu_model()},
        "checkpoint_hash": hashed,
        "numerics_id": _digest(numerics),
        "build_id": _digest(everything),
        "memory": engine.memory.to_json(),
        "tactics": engine.tactics,
        "prefixes": [{"num_tokens": len(prefix)} for prefix in prefixes],
        "pretrained_config": source.config.to_json(),
    }


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


def refuse_without_memory(need: MemoryNeed, config: BuildConfig, available: int) -> None:
    """Raises BuildError when the engine cannot be packed here, or could not hold one sequence of max_seq_len."""
    if need.build > available:
        raise BuildError(
            f"packing the weights needs {need.build / 1e9:.2f} GB of memory and {available / 1e9:.2f} GB are "
            "available; free some, or build on a larger machine"
        )
    serving = need.activations + need.logits + need.kv_per_sequence
    if serving > available:
        raise BuildError(
            f"serving one sequence of max_seq_len {config.max_seq_len} takes {serving / 1e9:.2f} GB beside the weights "
            f"(activations {need.activations / 1e9:.2f}, logits {need.logits / 1e9:.2f}, KV cache "
            f"{need.kv_per_sequence / 1e9:.2f}) and {available / 1e9:.2f} GB are available; lower max_seq_len, "
            "max_num_tokens or max_batch_size"
        )
