"""`precast inspect`."""

from __future__ import annotations

import json
from typing import Any

import click

from precast.cli import one_line
from precast.cli.options import progress_bars, revision_option
from precast.cli.tactics_table import tactics_table

WIDTH = 100
"""Lists up to this length are printed on one line."""


@click.command("inspect")
@click.argument("model", metavar="PATH", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verify", is_flag=True, help="Read an engine's every byte and check its checksums.")
@click.option("--plan", "with_plan", is_flag=True, help="Print an engine's plan, one op a line.")
@click.option("--families", is_flag=True, help="List the model families that can be converted.")
@revision_option
def command(
    model: str | None, as_json: bool, verify: bool, with_plan: bool, families: bool, revision: str | None
) -> int:
    """Show what PATH is: an engine, a checkpoint, a Hugging Face folder, a GGUF file, a hub id, or `demo`.

    \b
    Examples:
      precast inspect engine
      precast inspect engine --verify
      precast inspect model.gguf --json
      precast inspect --families
    """
    if families:
        if model is not None or verify or with_plan:
            raise click.UsageError("--families stands alone")
        return _families(as_json)
    if model is None:
        raise click.UsageError("give a PATH, or --families")
    from precast.pipeline import kind_of, resolve

    with progress_bars() as progress:
        path = resolve(model, progress, revision)
    kind = kind_of(path)
    if (verify or with_plan) and kind != "engine":
        raise click.UsageError("--verify and --plan are for engines")
    if kind == "engine":
        from precast.builder.describe import describe_engine

        found = describe_engine(path, verify=verify, with_plan=with_plan)
    elif kind == "checkpoint":
        from precast.builder.describe import describe_checkpoint

        found = describe_checkpoint(path)
    else:
        from precast.quantize.describe import describe_source

        found = describe_source(path)
    if as_json:
        click.echo(json.dumps(found, indent=2, default=str))
    else:
        _print(found)
    if found.get("damage"):
        click.echo(f"error: {path} is damaged; build it again", err=True)
        return 1
    return 0


def _families(as_json: bool) -> int:
    from precast.quantize.families.page import rows

    table = rows()
    if as_json:
        click.echo(json.dumps(table, indent=2))
        return 0
    shown = ("family", "model_type", "models")
    widths = [max(len(row[key]) for row in table) for key in shown]
    for row in table:
        click.echo("  ".join(row[key].ljust(width) for key, width in zip(shown, widths, strict=True)).rstrip())
    return 0


def _print(found: dict[str, Any], indent: str = "") -> None:
    for key, value in found.items():
        if key == "tactics" and (lines := tactics_table(value)):
            click.echo("tactics:")
            for line in lines:
                click.echo(f"  {one_line(line)}")
        elif isinstance(value, dict) and value:
            click.echo(f"{indent}{one_line(key)}:")
            _print(value, indent + "  ")
        elif isinstance(value, list | tuple) and len(", ".join(map(str, value))) > WIDTH:
            click.echo(f"{indent}{key}:")
            for item in value:
                click.echo(f"{indent}  {one_line(str(item))}")
        else:
            click.echo(f"{indent}{one_line(key)}: {one_line(_text(key, value))}")


def _item(value: Any) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)


def _text(key: str, value: Any) -> str:
    """A value for people; sizes also in MB."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_item, value)) or "none"
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if key.endswith("_bytes") and isinstance(value, int) and value >= 10**6:
        return f"{value} ({value / 1e6:.1f} MB)"
    return str(value)
