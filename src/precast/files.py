"""Writing that survives a kill: a file or folder appears whole, by one rename, or not at all.

All writes of checkpoints, engines and cache entries go through this module, so one place can inject faults
(tests replace `write`, `fsync` and `replace` here) and one place decides what "atomic" means.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from precast.errors import PrecastError
from precast.json_file import find_config_object

ROOM_RESERVE = 64 << 20

# What checkpoints and engines are made of: a folder of ours that holds anything else is not removed.
WRITTEN_SUFFIXES = (".engine", ".jinja", ".json", ".safetensors")
WRITTEN_FOLDER = "additional_chat_templates"


def fsync(fd: int) -> None:
    """Flushes a file descriptor to the device."""
    os.fsync(fd)


def replace(source: Path, target: Path) -> None:
    """Renames `source` to `target`; a folder target must be absent or empty, a file target is replaced."""
    os.replace(source, target)


def fsync_path(path: Path) -> None:
    """Flushes a file or a folder's entries to the device."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def create(path: Path) -> BinaryIO:
    """Opens a new file for writing; an existing one is an error."""
    return open(path, "xb")


def write(file: BinaryIO, data: bytes | memoryview) -> None:
    """Writes all of `data` to an open file."""
    file.write(data)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes and flushes one file (not atomic on its own: for files inside a `new_folder`)."""
    with create(path) as file:
        write(file, data)
        file.flush()
        fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON with a final newline; see `write_bytes`."""
    try:
        data = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # lone surrogates: of file names that are not UTF-8, or of foreign JSON
        data = json.dumps(value, indent=2, allow_nan=False).encode()
    write_bytes(path, data + b"\n")


def copy(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copies files, given as paths in the folder `source`, into the folder `target`; see `write_bytes`."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target / name, (source / name).read_bytes())


def refuse_foreign(target: Path, replaces: str | None = None) -> None:
    """Raises PrecastError when `target` exists and may not be replaced: it is a file, or a folder that is neither empty
    nor has a config.json with the `format` that `replaces` names and only such files beside it as are written with it.
    Also when it is a mount point."""
    if not target.is_dir():
        if target.exists() or target.is_symlink():
            raise PrecastError(f"{target} exists and is not a folder; give another output folder")
        return
    ours = replaces is not None and find_config_object(target / "config.json").get("format") == replaces
    if not all(ours and _is_written(path) for path in target.iterdir()):
        raise PrecastError(f"{target} holds other files, which would be lost; give a new output folder")
    if os.path.ismount(target):
        raise PrecastError(f"{target} is a mount point, which no rename can replace; give a folder inside it")


def _is_written(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return path.name == WRITTEN_FOLDER and all(map(_is_written, path.iterdir()))
    return path.is_file() and path.suffix in WRITTEN_SUFFIXES


def require_room(target: Path, size: int) -> None:
    """Raises PrecastError when the file system of `target` has less than `size` bytes (and some reserve) free."""
    place = target.absolute().parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size + ROOM_RESERVE:
        raise PrecastError(
            f"{target} needs {(size + ROOM_RESERVE) / 1e9:.2f} GB and {place} has {free / 1e9:.2f} GB free; make "
            "room, or give another output folder"
        )


@contextmanager
def new_folder(target: Path, replaces: str | None = None) -> Iterator[Path]:
    """Yields a temporary folder beside `target` that becomes `target` by one rename when the block succeeds.

    An existing `target` that `refuse_foreign` allows is moved aside first and removed after the rename. When the block
    raises, the temporary folder is removed and `target` stays as it was. After a kill only a folder named
    `.<name>.tmp-*` may be left, which nothing ever loads and the next `new_folder` for the same target sweeps when its
    maker is gone.
    """
    refuse_foreign(target, replaces)
    target = target.resolve()  # a link stays, and the folder that it names is replaced
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    with work_folder(target) as work:
        aside = work.with_name(work.name + ".old")
        try:
            yield work
            for path in sorted(work.rglob("*")):
                if path.is_dir():
                    fsync_path(path)
            fsync_path(work)
            work.chmod(0o755)
            refuse_foreign(target, replaces)  # again: what appeared meanwhile is not ours to remove
            if target.exists():
                replace(target, aside)
            replace(work, target)
            fsync_path(target.parent)
        except BaseException:
            if aside.exists() and not target.exists():
                replace(aside, target)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """Yields a new folder beside `target`, which is removed at the end. What a kill leaves of it is swept by the next
    `new_folder` for the same target."""
    work = target.parent / f".{target.name}.tmp-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        work.mkdir(0o700)  # in here: a signal may come right behind it
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Removes temporary folders of `target` whose makers no longer run; restores one that was moved aside mid-swap."""
    for path in target.parent.glob(f".{target.name}.tmp-*"):
        pid = path.name.removeprefix(f".{target.name}.tmp-").split("-")[0]
        if not pid.isdigit() or _alive(int(pid)):
            continue
        if path.name.endswith(".old") and not target.exists():
            replace(path, target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
