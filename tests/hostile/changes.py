"""What is done to a copy of a good model, so that it becomes a hostile one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 1 << 30
DEEP = 200_000

Change = Callable[[Path], Any]


@dataclass(frozen=True)
class Hostile:
    """`change` is given a copy of a good folder; what it returns, if anything, is the path to give to commands.
    `says`: a part of every refusal. `works`: commands that may take it."""

    change: Change
    says: str
    works: tuple[str, ...] = ()


def file(name: str, data: bytes | str | Callable[[], bytes]) -> Change:
    """Another file of this name, or one more."""

    def change(folder: Path) -> None:
        content = data() if callable(data) else data
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def late(make: Callable[[], Change]) -> Change:
    """A change that is large, and made when it is wanted."""
    return lambda folder: make()(folder)


def sparse(name: str, size: int, head: bytes | None = None) -> Change:
    """A file that goes on with zeros up to `size`."""

    def change(folder: Path) -> None:
        if head is not None:
            (folder / name).write_bytes(head)
        os.truncate(folder / name, size)

    return change


def pipe(name: str) -> Change:
    """A pipe that nobody writes into."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def link(name: str, target: str) -> Change:
    """A symbolic link."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def keys(name: str, **changes: Any) -> Change:
    """A JSON file with other keys."""

    def change(folder: Path) -> None:
        value = json.loads((folder / name).read_bytes()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps(value | changes))

    return change


def both(*changes: Change) -> Change:
    def change(folder: Path) -> Any:
        return [c(folder) for c in changes][-1]

    return change


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


JSON_TEXTS: dict[str, bytes] = {
    "empty": b"",
    "cut": b'{"a": [1,',
    "list": b"[]",
    "number": b"5",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "zeros": bytes(1000),
    "deep lists": b'{"a": ' + b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "deep and closed": b'{"a": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "an integer of many digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
}


def bomb() -> bytes:
    """60 MB of JSON that become gigabytes."""
    return b'{"a": [' + b"[]," * 20_000_000 + b"0]}"


TEMPLATE = "chat_template.jinja"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
