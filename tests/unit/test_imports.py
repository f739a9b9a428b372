"""Imports point one way: cli → {pipeline, planning, benchmark, evaluation, prefixes} →
{quantize, builder, runtime, model_repo} → plugins."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEAVES = ("errors", "files", "json_file", "mapped", "progress", "checkpoint", "checkpoint_rules", "safetensors_file")
TEXT = "runtime.text"

# Package → the parts of precast that it may import, beside itself and the leaves.
ALLOWED: dict[str, tuple[str, ...]] = {
    "cli": (
        "pipeline",
        "planning",
        "benchmark",
        "evaluation",
        "prefixes",
        "quantize",
        "builder",
        "runtime",
        "model_repo",
    ),
    "quantize": (TEXT,),
    "builder": ("plugins", "_native", TEXT),
    "runtime": ("plugins", "_native"),
    "model_repo": ("runtime",),
    "plugins": (),
}


def imported(path: Path) -> set[str]:
    """What a file imports of precast, without that prefix; imports inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("precast.") for name in found if name.startswith("precast.")} - {"__version__"}


def within(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(part + ".") for part in parts)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    for path in paths:
        own = (package,) if TEXT.replace(".", "/") not in str(path) else (TEXT,)
        for name in imported(path):
            assert within(name, (*own, *LEAVES, *ALLOWED[package])), f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_import_leaves_only(leaf: str) -> None:
    assert all(within(name, LEAVES) for name in imported(ROOT / "src" / "precast" / f"{leaf}.py"))
