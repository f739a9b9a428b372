"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path


def available_memory(root: Path = Path("/")) -> int:
    """Bytes: what the machine has available, or less where a cgroup (v1 or v2) leaves less.

    File cache counts as available, also inside a cgroup: it gives way. `root` is put before /proc and /sys (for tests).
    """
    least = _machine(root)
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "":
            least = min([least, *(_room(f, "memory.max", "memory.current") for f in _folders(mount, path))])
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            least = min([least, *(_room(f, *names) for f in _folders(mount / "memory", path))])
    return max(0, least)


def _machine(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _folders(mount: Path, path: str) -> list[Path]:
    """The cgroup's folder and its parents; in a container the path may be the host's, then the mount is the cgroup."""
    folder = mount / path.lstrip("/")
    return [f for f in (folder, *folder.parents) if f == mount or mount in f.parents]


def _room(folder: Path, limit_name: str, usage_name: str) -> int:
    limit, usage = _number(folder / limit_name), _number(folder / usage_name)
    if limit is None or usage is None:
        return 1 << 62
    cache = 0
    for line in _lines(folder / "memory.stat"):
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            cache = max(cache, int(value))
    return limit - usage + cache


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
