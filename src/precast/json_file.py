"""JSON objects in files that are not trusted."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from precast.errors import PrecastError

MAX_BYTES = 24 << 20
"""The largest index of shards that is known takes 15 MB. Tokenizers, which may be larger, are not read here."""

MAX_VALUES = 700_000
"""Lists, objects and what they hold: a hundred bytes of memory each, for as few as two of the file."""

MAX_CONFIG_BYTES = 4 << 20
"""Real config.json files take a few KiB."""

LFS_POINTER = b"version https://git-lfs"


def read_object(path: Path, error: type[PrecastError], *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in `path`; with `optional`, {} when there is no such file.

    Raises `error`, with one sentence, for anything else.
    """
    try:
        if optional and not path.exists():
            return {}
        data = read_small_file(path, error)
        if may_hold_values(data) > MAX_VALUES:
            raise error(f"{path} holds more than {MAX_VALUES} values: not a file that stands beside a model's weights")
        value = json.loads(data)
    except (ValueError, RecursionError) as wrong:
        raise error(f"{path} is not JSON: {wrong}") from None
    if not isinstance(value, dict):
        raise error(f"{path} must hold a JSON object")
    return value


def may_hold_values(data: bytes) -> int:
    """At most so many values make a JSON text: what costs memory is known before any is taken."""
    return sum(map(data.count, (b",", b"[", b"{"))) + 1


def read_small_file(
    path: Path, error: type[PrecastError], most: int = MAX_BYTES, what: str = "a file that stands beside weights"
) -> bytes:
    """What is in a file beside a model's weights. Raises `error` when it has more than `most` bytes (it is not `what`
    then), is a Git LFS pointer, or no regular file: devices have no end, and pipes may have no writer."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path} cannot be read: it is not a regular file")
        if status.st_size > most:
            raise error(f"{path} is larger than {most >> 20} MiB: not {what}")
        data = path.read_bytes()
    except OSError as wrong:
        raise error(f"{path} cannot be read: {wrong.strerror}") from None
    if data.startswith(LFS_POINTER):
        raise error(f"{path} is a Git LFS pointer, not the file; run `git lfs pull` in its folder")
    return data


def read_config_object(path: Path, error: type[PrecastError]) -> dict[str, Any]:
    """As `read_object`, for a config.json: small, and without NaN and infinite numbers, since it is written again."""
    if path.is_file() and path.stat().st_size > MAX_CONFIG_BYTES:
        raise error(f"{path} is larger than {MAX_CONFIG_BYTES >> 20} MiB: not a config")
    value = read_object(path, error)
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise error(f"{path} holds NaN or an infinite number, which is not JSON; correct it") from None
    return value


def find_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} when there is none that can be read."""
    try:
        return read_object(path, PrecastError)
    except PrecastError:
        return {}


def find_config_object(path: Path) -> dict[str, Any]:
    """As `find_object`, for a config.json."""
    try:
        return read_config_object(path, PrecastError) if path.is_file() else {}
    except PrecastError:
        return {}
