"""The build cache: engines by the content that they were made of.

Layout of the cache folder ($PRECAST_CACHE, else ~/.cache/precast):

    engines/<key>/            one engine; appears by one rename
    engines/.<key>.tmp-*      work in progress, or what a kill left of it: swept by whoever holds the key's lock next
    locks/<key>.lock          held while an engine is made or removed: concurrent builders of one key make it once
    timings.json              which tactics were fastest on this machine, and how fast (targets/cpu/tactics.py)
    digests.json              SHA-256 of source files by (path, size, mtime), so that a second start hashes nothing

Anything else in the folder belongs to others and is never touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast import files
from precast.builder.engine_file import EngineFile
from precast.errors import EngineError, PrecastError
from precast.json_file import find_object
from precast.progress import Progress, silent

DEFAULT_MAX_BYTES = 64 << 30
"""Engines beyond this are pruned, least recently used first, after a build; $PRECAST_CACHE_MAX_BYTES overrides it."""

MODEL_SUFFIXES = (".gguf", ".jinja", ".json", ".model", ".safetensors", ".txt")
"""What a model folder's content is: weights, configs, tokenizers, templates; not its pictures, licence or pickles."""

MAX_KEPT = 1000

_KEY = re.compile(r"[0-9a-f]{32}\Z")
_WORK = re.compile(r"\.([0-9a-f]{32})\.tmp-")


def cache_dir() -> Path:
    """The cache folder; it may not exist yet."""
    if named := os.environ.get("PRECAST_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        raise PrecastError("this user has no home folder to keep engines in; set PRECAST_CACHE to a folder")
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


def engine(key: str, make: Callable[[Path], None], progress: Progress = silent) -> Path:
    """The engine of a key. `make(folder)` makes it when it is missing or will not open; of those who want one key at
    the same time, one makes it and the others wait. Raises PrecastError when the cache cannot be written."""
    folder = _engines() / key
    if _usable(folder):
        _touch(folder)
        return folder
    max_bytes = _max_bytes()
    with _locked(key, progress):
        if not _usable(folder):
            _sweep_work(key)
            if _is_engine(folder):
                _discard(folder)
            make(folder)
        _touch(folder)
    prune(max_bytes, keep=key)
    return folder


@contextmanager
def work_folder(key: str) -> Iterator[Path]:
    """A folder for what is needed while the engine of `key` is made, on the same disk; removed at the end."""
    _engines().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{key}.tmp-{os.getpid()}-", dir=_engines()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def entries() -> list[Entry]:
    """The cached engines, most recently used first."""
    found = []
    for folder in _engines().glob("*"):
        if not _KEY.match(folder.name) or not _is_engine(folder):
            continue
        try:
            used = folder.stat().st_mtime
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        except FileNotFoundError:  # pruned by somebody else meanwhile
            continue
        found.append(Entry(folder.name, folder, size, used, _model(folder)))
    return sorted(found, key=lambda entry: (-entry.used, entry.key))


def verify() -> Iterator[tuple[Entry, str | None]]:
    """Every entry with what is wrong with it (None: nothing); reads all bytes."""
    for entry in entries():
        try:
            wrong = next((w for _, w in EngineFile.open(entry.path / "rank0.engine").damage()), None)
        except EngineError as error:
            wrong = str(error)
        yield entry, wrong


def prune(max_bytes: int, keep: str | None = None) -> list[Entry]:
    """Removes least recently used engines until at most `max_bytes` are left; → what was removed. `keep` stays.

    Also removes what killed builds left. Engines that are being made are left alone, and processes that have a removed
    one mapped keep it.
    """
    for path in _engines().glob(".*.tmp-*"):
        if match := _WORK.match(path.name):
            with _try_locked(match[1]) as mine:
                if mine:
                    shutil.rmtree(path, ignore_errors=True)
    removed = []
    listed = entries()
    total = sum(entry.size for entry in listed)
    for entry in reversed(listed):
        if total <= max_bytes:
            break
        if entry.key != keep and _remove(entry):
            removed.append(entry)
            total -= entry.size
    return removed


def content_digest(path: Path, check: Callable[[], None] = lambda: None) -> str:
    """SHA-256 over the names and bytes of a model: a file, or the files of a folder that have MODEL_SUFFIXES.

    `check` is called before a file is read whose digest is not known: what cannot work should fail before that time is
    spent.
    """
    members = [path]
    if path.is_dir():
        members = sorted(p for p in (*path.iterdir(), *path.glob("*/*.jinja")) if p.suffix in MODEL_SUFFIXES)
    known = load("digests.json")
    parts: list[tuple[str, str]] = []
    fresh: dict[str, Any] = {}
    for member in members:
        if not member.is_file():
            continue
        stat = member.stat()
        tag = f"{member.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}"
        if not isinstance(known.get(tag), str):
            if not fresh:
                check()
            with open(member, "rb") as file:
                fresh[tag] = hashlib.file_digest(file, "sha256").hexdigest()
        parts.append((str(member.relative_to(path.parent if path.is_file() else path)), fresh.get(tag) or known[tag]))
    if fresh:
        store("digests.json", load("digests.json") | fresh)
    return digest(parts)


def load(name: str) -> dict[str, Any]:
    """A JSON object that is kept in the cache folder; {} when there is none or it is damaged."""
    return find_object(cache_dir() / name)


def store(name: str, known: dict[str, Any]) -> None:
    """Keeps the last MAX_KEPT items of a JSON object. Losing the race with another writer, or a cache that cannot be
    written, costs the work of finding it out again."""
    with suppress(OSError):
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.tmp-", dir=cache_dir()) as folder:
            files.write_json(Path(folder) / name, dict(list(known.items())[-MAX_KEPT:]))
            files.replace(Path(folder) / name, cache_dir() / name)


def _engines() -> Path:
    return cache_dir() / "engines"


def _is_engine(folder: Path) -> bool:
    """Whether a folder is ours: an engine, or what is left of one."""
    return folder.is_dir() and any((folder / name).is_file() for name in ("config.json", "rank0.engine"))


def _usable(folder: Path) -> bool:
    try:
        EngineFile.open(folder / "rank0.engine")
    except EngineError:
        return False
    return bool(find_object(folder / "config.json"))


def _model(folder: Path) -> str:
    """What tells one engine from another: family, size, quantization, limits. Which files it came from is not kept."""
    config = find_object(folder / "config.json")
    model, limits = config.get("pretrained_config"), config.get("build_config")
    if not isinstance(model, dict) or not isinstance(limits, dict) or "architecture" not in model:
        return "damaged"
    quantization = model.get("quantization")
    algorithm = quantization.get("quant_algo") if isinstance(quantization, dict) else None
    return (
        f"{model['architecture']}, {model.get('num_hidden_layers')} layers of {model.get('hidden_size')}, "
        f"{algorithm or model.get('dtype')}, KV {limits.get('kv_cache_dtype')}, "
        f"up to {limits.get('max_batch_size')} sequences of {limits.get('max_seq_len')} tokens"
    )


def _touch(folder: Path) -> None:
    with suppress(OSError):  # a cache that others own can be read all the same
        os.utime(folder)


def _sweep_work(key: str) -> None:
    """Removes what killed makers of `key` left. Under its lock only: nobody else works on it then."""
    for path in _engines().glob(f".{key}.tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove(entry: Entry) -> bool:
    with _try_locked(entry.key) as mine:
        if not mine:
            return False
        try:
            _discard(entry.path)
        except OSError:
            return False
    return True


def _discard(folder: Path) -> None:
    """Removes an entry under its lock. Renamed first: an engine goes away whole, as it came."""
    gone = folder.with_name(f".{folder.name}.tmp-{os.getpid()}-discarded")
    files.replace(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _open_lock(key: str) -> int:
    path = cache_dir() / "locks" / f"{key}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise PrecastError(
            f"the cache folder {cache_dir()} cannot be written ({error.strerror}); set PRECAST_CACHE to another one"
        ) from None


@contextmanager
def _locked(key: str, progress: Progress) -> Iterator[None]:
    fd = _open_lock(key)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wait", 0, 1)
            fcntl.flock(fd, fcntl.LOCK_EX)
            progress("wait", 1, 1)
        yield
    finally:
        os.close(fd)


@contextmanager
def _try_locked(key: str) -> Iterator[bool]:
    """Yields whether the lock was free, and holds it then."""
    fd = _open_lock(key)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _max_bytes() -> int:
    named = os.environ.get("PRECAST_CACHE_MAX_BYTES")
    if named is None:
        return DEFAULT_MAX_BYTES
    if not (named.isascii() and named.isdigit()):
        raise PrecastError(f"PRECAST_CACHE_MAX_BYTES must be a number of bytes, not {named!r}")
    return int(named)
