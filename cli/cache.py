"""`precast cache`."""

from __future__ import annotations

import json
from datetime import datetime

import click

from precast.cli.options import MemorySize


@click.group("cache")
def command() -> None:
    """List, check and prune the engines that `run`, `chat` and Python built on their own.

    \b
    Examples:
      precast cache ls
      precast cache prune --max-size 10G
    """


@command.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(as_json: bool) -> None:
    """List the cached engines, most recently used first."""
    from precast.builder import build_cache

    listed = build_cache.entries()
    if as_json:
        rows = [{"key": e.key, "path": str(e.path), "bytes": e.size, "used": e.used, "model": e.model} for e in listed]
        click.echo(json.dumps({"cache": str(build_cache.cache_dir()), "engines": rows}, indent=2))
        return
    for entry in listed:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        click.echo(f"{entry.key}  {entry.size / 1e6:10.1f} MB  {used}  {entry.model}")
    click.echo(f"{_count(len(listed))} in {build_cache.cache_dir()}", err=True)


@command.command("verify")
def verify() -> int:
    """Read every cached engine and check its checksums."""
    from precast.builder import build_cache

    damaged = 0
    for entry, wrong in build_cache.verify():
        click.echo(f"{entry.key}  {wrong or 'ok'}")
        damaged += wrong is not None
    return 1 if damaged else 0


@command.command("prune")
@click.option("--max-size", type=MemorySize(), help="Keep at most this much, e.g. 10G.")
@click.option("--all", "everything", is_flag=True, help="Remove all.")
def prune(max_size: int | None, everything: bool) -> None:
    """Remove cached engines, least recently used first. Processes that run one keep it."""
    from precast.builder import build_cache

    if (max_size is None) != everything:
        raise click.UsageError("give either --max-size or --all")
    removed = build_cache.prune(max_size or 0)
    click.echo(f"removed {_count(len(removed))}, {sum(e.size for e in removed) / 1e6:.1f} MB", err=True)


def _count(engines: int) -> str:
    return "1 engine" if engines == 1 else f"{engines} engines"
