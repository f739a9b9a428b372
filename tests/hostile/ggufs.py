"""Hostile GGUF files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tests.hostile.changes import GIB, Change, Hostile, file, link, pipe

GGUF_HEAD = b"GGUF" + struct.pack("<I", 3)


def gguf(tensors: int, fields: int, rest: bytes, size: int = 4096) -> Change:
    """A file of these counts, that goes on with zeros."""
    data = GGUF_HEAD + struct.pack("<QQ", tensors, fields) + rest

    def change(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(data)
        os.truncate(path, size)
        return path

    return change


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def array(kind: int, count: int) -> bytes:
    return text("x") + struct.pack("<IIQ", 9, kind, count)


def tensor_info(name: str, dimensions: tuple[int, ...], kind: int, offset: int) -> bytes:
    count = len(dimensions)
    return text(name) + struct.pack(f"<I{count}QIQ", count, *dimensions, kind, offset)


def as_path(name: str, change: Change) -> Change:
    def changed(folder: Path) -> Path:
        change(folder)
        return folder / name

    return changed


GGUFS: dict[str, Hostile] = {
    "GGUF of four bytes": Hostile(as_path("m.gguf", file("m.gguf", b"GGUF")), "not a whole GGUF"),
    "GGUF that is a pipe": Hostile(as_path("m.gguf", pipe("m.gguf")), "regular file"),
    "GGUF that is a device": Hostile(as_path("m.gguf", link("m.gguf", "/dev/zero")), "regular file"),
    "GGUF of version 2^32 - 1": Hostile(
        as_path("m.gguf", file("m.gguf", b"GGUF" + b"\xff" * 100)), "2 and 3 are supported"
    ),
    "GGUF of 2^62 tensors": Hostile(gguf(1 << 62, 0, b""), "are read"),
    "GGUF of 2^62 fields": Hostile(gguf(0, 1 << 62, b""), "are read"),
    "GGUF of a million fields": Hostile(
        gguf(0, 1_000_000, b"".join(text(f"{i}") + b"\0" * 5 for i in range(1000)), 1 << 25), "are read"
    ),
    "GGUF with a text of 2^63 bytes": Hostile(gguf(0, 1, struct.pack("<Q", 1 << 63)), "ends behind the end"),
    "GGUF with a text of a gigabyte": Hostile(gguf(0, 1, struct.pack("<Q", GIB), 2 * GIB), "a string of"),
    "GGUF with 2^60 numbers": Hostile(gguf(0, 1, array(12, 1 << 60)), "behind the end"),
    "GGUF with a billion numbers": Hostile(gguf(0, 1, array(0, GIB), 2 * GIB), "hold more than"),
    "GGUF with millions of arrays": Hostile(gguf(0, 1, array(9, 1 << 25), GIB), "hold more than"),
    "GGUF with empty texts": Hostile(gguf(0, 1, array(8, 1 << 28), 1 << 32), "hold more than"),
    "GGUF of arrays of arrays": Hostile(
        gguf(0, 1, text("x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40), "unknown type"
    ),
    "GGUF with a value of an unknown kind": Hostile(gguf(0, 1, text("x") + struct.pack("<I", 99)), "unknown type"),
    "GGUF with a name that is not UTF-8": Hostile(gguf(0, 1, struct.pack("<Q", 2) + b"\xff\xfe"), "not a whole GGUF"),
    "GGUF with a field twice": Hostile(gguf(0, 2, (text("x") + struct.pack("<IB", 0, 1)) * 2), "stands twice"),
    "GGUF with an alignment of 3": Hostile(
        gguf(0, 1, text("general.alignment") + struct.pack("<II", 4, 3)), "alignment"
    ),
    "GGUF with an alignment of a text": Hostile(
        gguf(0, 1, text("general.alignment") + struct.pack("<I", 8) + text("x")), "alignment"
    ),
    "GGUF with a tensor twice": Hostile(gguf(2, 0, tensor_info("t", (4,), 0, 0) * 2), "stands twice"),
    "GGUF with a tensor of many dimensions": Hostile(gguf(1, 0, tensor_info("t", (1,) * 9, 0, 0)), "dimensions"),
    "GGUF with a tensor behind the end": Hostile(gguf(1, 0, tensor_info("t", (4,), 0, 1 << 63)), "truncated"),
    "GGUF with a tensor of 2^80 bytes": Hostile(gguf(1, 0, tensor_info("t", (1 << 39,) * 2, 0, 0)), "truncated"),
    "GGUF with a tensor of nothing": Hostile(gguf(1, 0, tensor_info("t", (0,), 0, 0)), "cannot have the shape"),
    "GGUF with a tensor of an unknown type": Hostile(gguf(1, 0, tensor_info("t", (4,), 999, 0)), "999"),
    "GGUF without an architecture": Hostile(gguf(0, 0, b""), "architecture"),
    "GGUF of an architecture that writes on the terminal": Hostile(
        gguf(0, 1, text("general.architecture") + struct.pack("<I", 8) + text("\x1b[2J\nerror")), "architecture"
    ),
}
