"""What the pages name exists: links, files, commands and their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from precast.cli import cli
from precast.quantize.families.page import page
from precast.runtime.options import RuntimeOptions
from precast.runtime.output import CompletionOutput, RequestOutput
from precast.runtime.request_options import RequestOptions

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], key=str)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_exist_under_the_names_given(page: Path) -> None:
    known = {path.name for path in ROOT.rglob("*") if path.suffix in (".py", ".cpp", ".h")}
    for name in re.findall(r"`[\w/]*?(\w+\.(?:py|cpp|h))`", page.read_text()):
        assert name in known, name


def test_commands_of_the_readme_are_taken() -> None:
    commands = re.findall(r"precast (?!import)\w+ .*", "\n".join(re.findall(r"```sh\n(.*?)```", README, re.S)))
    assert len(commands) > 5
    for line in commands:
        words = shlex.split(line, comments=True)[1:]
        command: click.Command = cli
        context = click.Context(command)
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None, line
            command = found
        command.make_context("precast", words)  # raises for what the command does not take


@pytest.mark.parametrize(
    "kind", [RuntimeOptions, RequestOptions, RequestOutput, CompletionOutput], ids=lambda k: k.__name__
)
def test_the_page_of_the_python_api_names_everything(kind: type) -> None:
    named = re.findall(r"`(\w+)`", (ROOT / "docs/python.md").read_text())
    assert set(kind.__annotations__) <= set(named)


def test_the_page_of_models_is_what_the_descriptions_say() -> None:
    assert (ROOT / "docs/models.md").read_text() == page()
