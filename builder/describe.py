"""What `inspect` shows of engines and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from precast.builder.engine_file import MAX_PLAN_BYTES, EngineFile
from precast.builder.plan import Plan
from precast.builder.weights import Checkpoint
from precast.errors import CheckpointError, EngineError
from precast.json_file import read_object

MAX_QUALITY_BYTES = 1 << 16

ENGINE_KEYS = ("target", "isa", "numerics_id", "build_id", "built_by", "build_config", "memory", "tactics", "prefixes")


def describe_engine(folder: Path, *, verify: bool = False, with_plan: bool = False) -> dict[str, Any]:
    """What an engine was built from, by and for, and what it holds.

    `verify` reads every byte: `damage` lists what is wrong then. `with_plan` adds the plan, one op a line. Raises
    EngineError when header, section table or plan are damaged.
    """
    config = read_object(folder / "config.json", EngineError)
    engine = EngineFile.open(folder / "rank0.engine")
    if len(raw := engine.bytes("plan")) > MAX_PLAN_BYTES:
        raise EngineError(
            f"{engine.path} is damaged: its plan takes {len(raw)} bytes, at most {MAX_PLAN_BYTES} are read"
        )
    if (wrong := engine.damage_of("plan")) is not None:
        raise EngineError(f"{engine.path} is damaged: {wrong}")
    try:
        plan = Plan.from_bytes(bytes(raw))
    except ValueError as error:
        raise EngineError(f"{engine.path} is damaged: {error}") from None
    model = config.get("pretrained_config")
    model = model if isinstance(model, dict) else {}
    bytes_by_layout: dict[str, int] = {}
    for section in engine.sections.values():
        bytes_by_layout[section.tag] = bytes_by_layout.get(section.tag, 0) + section.length
    found = {
        "kind": "engine",
        "model": model.get("architecture"),
        "quantization": model.get("quantization"),
        **{key: config.get(key) for key in ENGINE_KEYS},
        "plan_attributes": plan.attributes,
        "ops": len(plan.ops),
        "sections": len(engine.sections),
        "bytes_by_layout": bytes_by_layout,
    }
    if "quality" in engine.sections:
        found["quality"] = _quality(engine)
    if with_plan:
        found["plan"] = plan.to_text().splitlines()
    if verify:
        found["verified_bytes"] = sum(section.length for section in engine.sections.values())
        found["damage"] = [wrong for _, wrong in engine.damage()]
    return found


def _quality(engine: EngineFile) -> dict[str, Any]:
    """What the engine keeps of its checkpoint's quality (docs/engine-format.md). Raises EngineError when damaged."""
    raw = engine.bytes("quality")
    if len(raw) <= MAX_QUALITY_BYTES:
        try:
            found = json.loads(bytes(raw))
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
    raise EngineError(f"{engine.path} is damaged: its quality cannot be read")


def describe_checkpoint(folder: Path) -> dict[str, Any]:
    """A checkpoint's config, without the source's own, its worst quantized weights (dB; lower is worse), and what
    `convert --eval` measured.

    Raises CheckpointError when the checkpoint is not whole.
    """
    config = Checkpoint(folder).config.to_json()
    del config["pretrained_config"]
    found = {"kind": "checkpoint", **config}
    if (folder / "report.json").is_file():
        report = read_object(folder / "report.json", CheckpointError)
        ratios = report.get("weight_sqnr_db")
        if isinstance(ratios, dict) and ratios:
            worst = report.get("worst")
            found["worst_weight_sqnr_db"] = {m: ratios.get(m) for m in worst} if isinstance(worst, list) else {}
        if isinstance(report.get("quality"), dict):
            found["quality"] = {key: value for key, value in report["quality"].items() if key != "check"}
    return found
