"""`precast inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verify", is_flag=True, help="Read an engine's every byte and check its checksums.")
@click.option("--plan", "with_plan", is_flag=True, help="Print an engine's plan, one op a line.")
def command(path: Path, as_json: bool, verify: bool, with_plan: bool) -> int:
    """Show what PATH is: an engine, a checkpoint, a Hugging Face folder, or a GGUF file.

    \b
    Examples:
      precast inspect engine
      precast inspect engine --verify
      precast inspect model.gguf --json
    """
    from precast.pipeline import kind_of

    kind = kind_of(path)
    if (verify or with_plan) and kind != "engine":
        raise click.UsageError("--verify and --plan are for engines")
    if kind == "engine":
        found = _engine(path, verify, with_plan)
    elif kind == "checkpoint":
        found = _checkpoint(path)
    else:
        from precast.quantize import describe_source

        found = describe_source(path)
    if as_json:
        click.echo(json.dumps(found, indent=2, default=str))
    else:
        _print(found)
    return 1 if found.get("damage") else 0


def _engine(path: Path, verify: bool, with_plan: bool) -> dict[str, Any]:
    from precast.builder.engine_file import EngineFile
    from precast.builder.plan import Plan
    from precast.errors import EngineError

    config = json.loads((path / "config.json").read_bytes())
    engine = EngineFile.open(path / "rank0.engine")
    try:
        plan = Plan.from_bytes(bytes(engine.bytes("plan")))
    except ValueError as error:
        raise EngineError(f"{path}: {error}") from None
    bytes_by_tag: dict[str, int] = {}
    for section in engine.sections.values():
        bytes_by_tag[section.tag] = bytes_by_tag.get(section.tag, 0) + section.length
    keys = ("target", "isa", "numerics_id", "build_id", "built_by", "build_config", "tactics")
    found: dict[str, Any] = {"kind": "engine", **{key: config.get(key) for key in keys}}
    found["model"] = config.get("pretrained_config", {}).get("architecture")
    found["quantization"] = config.get("pretrained_config", {}).get("quantization")
    found["plan_attributes"] = plan.attributes
    found["ops"] = len(plan.ops)
    found["sections"] = len(engine.sections)
    found["bytes_by_layout"] = bytes_by_tag
    if with_plan:
        found["plan"] = plan.to_text().splitlines()
    if verify:
        found["damage"] = [wrong for _, _, wrong in engine.damage() if wrong]
        found["verified_bytes"] = sum(section.length for section in engine.sections.values())
    return found


def _checkpoint(path: Path) -> dict[str, Any]:
    from precast.builder.weights import Checkpoint

    checkpoint = Checkpoint(path)
    config = checkpoint.config.to_json()
    config.pop("pretrained_config")
    found: dict[str, Any] = {"kind": "checkpoint", **config}
    if (path / "report.json").is_file():
        report = json.loads((path / "report.json").read_bytes())
        ratios = report.get("weight_sqnr_db") or {}
        found["worst_weight_sqnr_db"] = {module: ratios[module] for module in report.get("worst", [])}
    return found


def _print(found: dict[str, Any], indent: str = "") -> None:
    for key, value in found.items():
        if isinstance(value, dict):
            click.echo(f"{indent}{key}:")
            _print(value, indent + "  ")
        elif isinstance(value, list):
            click.echo(f"{indent}{key}: {'none' if not value else ''}")
            for item in value:
                click.echo(f"{indent}  {item}")
        else:
            click.echo(f"{indent}{key}: {value}")
