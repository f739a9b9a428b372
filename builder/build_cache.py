"""The build cache: engines by the content that they were made of.

Layout of the cache folder ($PRECAST_CACHE, else ~/.cache/precast):

    engines/<key>/      one engine; appears by one rename
    locks/<key>.lock    held while an engine is made, so that concurrent builders of one key make it once
    digests.json        SHA-256 of source files by (path, size, mtime), so that a second start hashes nothing

Anything else in the folder belongs to others and is never touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast import files
from precast.builder.engine_file import EngineFile
from precast.errors import EngineError, PrecastError

DEFAULT_MAX_BYTES = 64 << 30
"""Engines beyond this are pruned, least recently used first, after a build; $PRECAST_CACHE_MAX_BYTES overrides it."""

_KEY = re.compile(r"[0-9a-f]{32}\Z")


def cache_dir() -> Path:
    """The cache folder; it may not exist yet."""
    if named := os.environ.get("PRECAST_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "precast"


@dataclass(frozen=True)
class Entry:
    """One cached engine. `used` in seconds since the epoch."""

    key: str
    path: Path
    size: int
    used: float
    model: str


def digest(value: Any) -> str:
    """A key: 32 hex digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


def engine(key: str, make: Callable[[Path], None]) -> Path:
    """The engine of a key; `make(folder)` makes it when it is missing or will not open, one maker at a time."""
    folder = cache_dir() / "engines" / key
    if _usable(folder):
        os.utime(folder)
        return folder
    with _lock(key):
        if not _usable(folder):
            make(folder)
            prune(_max_bytes(), keep=key)
    return folder


def _usable(folder: Path) -> bool:
    try:
        json.loads((folder / "config.json").read_bytes())
        EngineFile.open(folder / "rank0.engine")
    except (OSError, ValueError, EngineError):
        return False
    return True


@contextmanager
def _lock(key: str) -> Iterator[None]:
    path = cache_dir() / "locks" / f"{key}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except PermissionError as error:
        raise PrecastError(f"the cache folder cannot be written ({error}); set PRECAST_CACHE to another one") from None


def _max_bytes() -> int:
    named = os.environ.get("PRECAST_CACHE_MAX_BYTES")
    if named is None:
        return DEFAULT_MAX_BYTES
    if not named.isdigit():
        raise PrecastError(f"PRECAST_CACHE_MAX_BYTES must be a number of bytes, not {named!r}")
    return int(named)


def entries() -> list[Entry]:
    """The cached engines, most recently used first."""
    found = []
    for folder in (cache_dir() / "engines").glob("*"):
        if not _KEY.match(folder.name) or not folder.is_dir():
            continue
        try:
            config = json.loads((folder / "config.json").read_bytes())
            model = config["pretrained_config"]["architecture"]
        except (OSError, ValueError, KeyError, TypeError):
            model = "damaged"
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        found.append(Entry(folder.name, folder, size, folder.stat().st_mtime, model))
    return sorted(found, key=lambda entry: -entry.used)


def verify() -> Iterator[tuple[Entry, str | None]]:
    """Every entry with what is wrong with it (None: nothing); reads all bytes."""
    for entry in entries():
        try:
            wrong = next((w for _, _, w in EngineFile.open(entry.path / "rank0.engine").damage() if w), None)
        except EngineError as error:
            wrong = str(error)
        yield entry, wrong


def prune(max_bytes: int, keep: str | None = None) -> list[Entry]:
    """Removes least recently used engines until at most `max_bytes` are left; → what was removed."""
    removed = []
    listed = entries()
    total = sum(entry.size for entry in listed)
    for entry in reversed(listed):
        if total <= max_bytes:
            break
        if entry.key == keep:
            continue
        # Renamed first: an engine goes away whole, as it came. Processes that have it mapped keep it.
        gone = entry.path.with_name(f".{entry.key}.tmp-{os.getpid()}-pruned")
        files.replace(entry.path, gone)
        shutil.rmtree(gone, ignore_errors=True)
        removed.append(entry)
        total -= entry.size
    return removed


def content_digest(path: Path) -> str:
    """SHA-256 over the names and bytes of a file, or of the files of a folder that a model is made of."""
    members = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file() and not p.is_symlink())
    members += [] if path.is_file() else sorted(p for p in path.iterdir() if p.is_symlink() and p.is_file())
    store = cache_dir() / "digests.json"
    try:
        known = json.loads(store.read_bytes())
    except (OSError, ValueError):
        known = {}
    parts, fresh = [], {}
    for member in members:
        stat = member.stat()
        tag = f"{member.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}"
        if not isinstance(known.get(tag), str):
            with open(member, "rb") as file:
                known[tag] = hashlib.file_digest(file, "sha256").hexdigest()
            fresh[tag] = known[tag]
        parts.append((member.name, known[tag]))
    if fresh:
        _store_digests(store, known)
    return digest(parts)


def _store_digests(store: Path, known: dict[str, str]) -> None:
    """Losing the race with another writer costs a hash the next time, nothing else."""
    store.parent.mkdir(parents=True, exist_ok=True)
    temporary = store.with_name(f".digests.tmp-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    newest = dict(list(known.items())[-1000:])
    files.write_json(temporary, newest)
    files.replace(temporary, store)
