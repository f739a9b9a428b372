"""JSON objects in files that are not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from precast.errors import PrecastError

MAX_BYTES = 256 << 20
"""Real tokenizers of 256k tokens, the largest JSON files of models, take about 35 MB."""

LFS_POINTER = b"version https://git-lfs"


def read_object(path: Path, error: type[PrecastError], *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in `path`; with `optional`, {} when there is no such file.

    Raises `error`, with one sentence, for anything else.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise error(f"{path} is larger than {MAX_BYTES >> 20} MiB: not a JSON file of a model")
        data = path.read_bytes()
        if data.startswith(LFS_POINTER):
            raise error(f"{path} is a Git LFS pointer, not the file; run `git lfs pull` in its folder")
        value = json.loads(data)
    except OSError as wrong:
        if optional and isinstance(wrong, FileNotFoundError | NotADirectoryError):
            return {}
        raise error(f"{path} cannot be read: {wrong.strerror}") from None
    except (ValueError, RecursionError) as wrong:
        raise error(f"{path} is not JSON: {wrong}") from None
    if not isinstance(value, dict):
        raise error(f"{path} must hold a JSON object")
    return value


def find_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} when there is none that can be read."""
    try:
        return read_object(path, PrecastError)
    except PrecastError:
        return {}
