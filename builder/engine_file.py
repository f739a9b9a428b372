"""The engine file (docs/engine-format.md): a streaming writer, and a reader that trusts nothing.

The C++ twin of the reader is runtime/core/engine_file.cpp.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast import files
from precast.errors import EngineError

if TYPE_CHECKING:  # reading needs no numpy, so that a start from the cache does not wait for its import
    import numpy.typing as npt

FORMAT = "precast-engine"
"""Of the folder's config.json."""

FORMAT_VERSION = 0
"""Of both: the folder's config.json and the file."""

MAGIC = b"PRECAST\0"
HEADER = struct.Struct("<8sIIQQQI16xI")
HEADER_BYTES = 64
CHECKSUM_BLOCK = 4 << 20
"""Bytes under one checksum: small enough to name the place of damage, large enough that the table stays short."""

HUGE_PAGE = 2 << 20
MAX_SECTIONS = 1 << 16
MAX_TABLE_BYTES = 8 << 20
"""The checksums of eight terabytes of weights."""

MAX_PLAN_BYTES = 16 << 20
"""As long as those of ten thousand layers."""

assert HEADER.size == HEADER_BYTES


@dataclass(frozen=True)
class Section:
    """One entry of the section table. `offset` and `length` in bytes; one CRC-32 per block of CHECKSUM_BLOCK bytes."""

    name: str
    tag: str
    offset: int
    length: int
    checksums: tuple[int, ...]


def aligned(offset: int, length: int) -> int:
    """The next place at or behind `offset` where a section of `length` bytes may start."""
    step = HUGE_PAGE if length >= HUGE_PAGE else 64
    return -(-offset // step) * step


def _table_entry(section: Section) -> bytes:
    name, tag = section.name.encode(), section.tag.encode()
    head = struct.pack("<H", len(name)) + name + struct.pack("<H", len(tag)) + tag
    checksums = struct.pack(f"<{len(section.checksums)}I", *section.checksums)
    return head + struct.pack("<QQI", section.offset, section.length, CHECKSUM_BLOCK) + checksums


class EngineWriter:
    """Writes one engine file, section after section.

    The names, tags and lengths of all sections come first, so that the size of the file is known before a weight is
    read; `add` then takes them in that order. Nothing is valid before `close`, which writes the header last.
    """

    def __init__(self, path: Path, plan: list[tuple[str, str, int]]) -> None:
        """`plan`: (name, layout tag, length in bytes) of every section. Raises ValueError for a name given twice."""
        if len({name for name, _, _ in plan}) != len(plan) or not 0 < len(plan) <= MAX_SECTIONS:
            raise ValueError("section names must be unique, and there must be one to 65,536 of them")
        self._plan([], plan)
        self._file = files.create(path)

    @classmethod
    def extend(cls, path: Path, plan: list[tuple[str, str, int]]) -> EngineWriter:
        """Writes more sections, as announced in `plan`, behind those of an engine file that nobody maps yet.

        Until `close` the file is broken. Raises EngineError for a file that is no engine, ValueError for a name that
        stands twice.
        """
        writer = cls.__new__(cls)
        writer._plan(list(EngineFile.open(path).sections.values()), plan)
        writer._file = open(path, "r+b")  # noqa: SIM115
        files.write(writer._file, bytes(HEADER_BYTES))
        writer._file.flush()
        return writer

    def _plan(self, there: list[Section], plan: list[tuple[str, str, int]]) -> None:
        """Gives every new section its place behind those that are `there`."""
        names = [section.name for section in there] + [name for name, _, _ in plan]
        if len(set(names)) != len(names) or not 0 < len(names) <= MAX_SECTIONS:
            raise ValueError("section names must be unique, and there must be one to 65,536 of them")
        self._written, self._planned = list(there), list(there)
        place = there[-1].offset + there[-1].length if there else HEADER_BYTES
        for name, tag, length in plan:
            place = aligned(place, length)
            self._planned.append(Section(name, tag, place, length, (0,) * -(-length // CHECKSUM_BLOCK)))
            place += length
        self._table_at = place
        self.size = place + sum(len(_table_entry(section)) for section in self._planned)

    def add(self, name: str, data: npt.NDArray[Any] | bytes | Iterator[npt.NDArray[Any] | bytes]) -> None:
        """Writes the next section, whole or in parts that follow each other.

        Raises ValueError when name or length is not what was announced.
        """
        section = self._planned[len(self._written)]
        if section.name != name:
            raise ValueError(f"section {name} is not the announced {section}")
        self._file.seek(section.offset)
        checksums: list[int] = []
        written, pending = 0, bytearray()
        for part in data if isinstance(data, Iterator) else [data]:
            view = memoryview(part if isinstance(part, bytes) else part.ravel().view("u1").data)
            written += len(view)
            if written > section.length:
                raise ValueError(f"section {name} is longer than the announced {section}")
            while len(view):
                taken = view[: CHECKSUM_BLOCK - len(pending)]
                pending += taken
                view = view[len(taken) :]
                if len(pending) == CHECKSUM_BLOCK:
                    checksums.append(self._write_block(pending))
                    pending = bytearray()
        if written != section.length:
            raise ValueError(f"section {name} ({written} bytes) is not the announced {section}")
        if pending:
            checksums.append(self._write_block(pending))
        self._written.append(Section(name, section.tag, section.offset, section.length, tuple(checksums)))

    def _write_block(self, block: bytearray) -> int:
        """→ its checksum. A block is written by one call, in whatever parts it came: Linux keeps what is written in
        whole huge pages as such, and then maps a fresh engine in huge pages too."""
        files.write(self._file, memoryview(block))
        return zlib.crc32(block)

    def close(self) -> None:
        """Writes table and header and flushes. Raises ValueError when announced sections are missing."""
        if len(self._written) != len(self._planned):
            raise ValueError(f"section {self._planned[len(self._written)].name} was announced and not written")
        table = b"".join(_table_entry(s) for s in self._written)
        head = (MAGIC, FORMAT_VERSION, len(self._written), self.size, self._table_at, len(table), zlib.crc32(table))
        header = HEADER.pack(*head, 0)
        self._file.truncate(self.size)
        self._file.seek(self._table_at)
        files.write(self._file, table)
        self._file.seek(0)
        files.write(self._file, header[:60] + struct.pack("<I", zlib.crc32(header[:60])))
        self._file.flush()
        files.fsync(self._file.fileno())
        self._file.close()

    def abort(self) -> None:
        """Closes the file as it is; without its header nothing reads it."""
        self._file.close()


class EngineFile:
    """A mapped engine file: the checked section table, and the bytes behind it."""

    def __init__(self, path: Path, data: mmap.mmap, sections: dict[str, Section]) -> None:
        self.path = path
        self._data = data
        self.sections = sections

    @classmethod
    def open(cls, path: Path) -> EngineFile:
        """Maps a file and checks its header and section table; weights stay untouched.

        Raises EngineError, with one sentence, for anything that is not as docs/engine-format.md says.
        """
        try:
            if path.exists() and not path.is_file():  # a pipe may have no writer
                raise EngineError(f"{path} cannot be read: it is not a regular file")
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                if size < HEADER_BYTES:
                    raise EngineError(f"{path} is not an engine: {size} bytes are too few")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise EngineError(f"{path} cannot be read: {error.strerror}") from None
        return cls(path, data, _read_table(path, data))

    def bytes(self, name: str) -> memoryview:
        """The bytes of a section. Raises EngineError when there is no such section."""
        if name not in self.sections:
            raise EngineError(f"{self.path} has no section {name}")
        section = self.sections[name]
        return memoryview(self._data)[section.offset : section.offset + section.length]

    def damage(self) -> Iterator[tuple[str, str]]:
        """Reads the sections one by one: yields (section, what is wrong with it) for each that is damaged."""
        for name in self.sections:
            if (wrong := self.damage_of(name)) is not None:
                yield name, wrong

    def damage_of(self, name: str) -> str | None:
        """Reads a section; → what is wrong with it, or None."""
        section, view = self.sections[name], self.bytes(name)
        for i, expected in enumerate(section.checksums):
            begin = i * CHECKSUM_BLOCK
            if zlib.crc32(view[begin : begin + CHECKSUM_BLOCK]) != expected:
                return f"checksum mismatch in section {name} at byte {section.offset + begin}"
        return None


def _read_table(path: Path, data: mmap.mmap) -> dict[str, Section]:
    header = data[:HEADER_BYTES]
    magic, version, count, size, table_at, table_bytes, table_crc, header_crc = HEADER.unpack(header)
    if magic != MAGIC:
        raise EngineError(f"{path} is not an engine file")
    if version != FORMAT_VERSION:
        raise EngineError(f"{path} has engine format {version}, this precast reads {FORMAT_VERSION}; build it again")
    if zlib.crc32(header[:60]) != header_crc:
        raise EngineError(f"{path} is damaged: the header's checksum does not match")
    if size != len(data):
        raise EngineError(f"{path} is truncated or grew: the header says {size} bytes, the file has {len(data)}")
    if table_at < HEADER_BYTES or table_bytes > MAX_TABLE_BYTES or table_at + table_bytes != size:
        raise EngineError(f"{path} is damaged: the section table is not the end of the file")
    table = data[table_at : table_at + table_bytes]
    if zlib.crc32(table) != table_crc:
        raise EngineError(f"{path} is damaged: the section table's checksum does not match")
    try:
        sections = _parse_table(table, count, table_at)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise EngineError(f"{path} is damaged: bad section table ({error})") from None
    return sections


def _parse_table(table: bytes, count: int, data_end: int) -> dict[str, Section]:
    place, end = 0, HEADER_BYTES
    sections: dict[str, Section] = {}

    def text() -> str:
        nonlocal place
        (length,) = struct.unpack_from("<H", table, place)
        raw = table[place + 2 : place + 2 + length]
        if len(raw) != length:
            raise ValueError("a name runs over the end")
        place += 2 + length
        return raw.decode()

    for _ in range(count):
        name, tag = text(), text()
        offset, length, block = struct.unpack_from("<QQI", table, place)
        place += 20
        blocks = -(-length // CHECKSUM_BLOCK)
        if block != CHECKSUM_BLOCK or offset % 64 or offset < end or offset + length > data_end:
            raise ValueError(f"section {name!r} lies outside the file, or over another")
        checksums = struct.unpack_from(f"<{blocks}I", table, place)
        place += 4 * blocks
        if name in sections:
            raise ValueError(f"section {name!r} stands twice")
        sections[name] = Section(name, tag, offset, length, checksums)
        end = offset + length
    if place != len(table):
        raise ValueError("bytes are left over")
    return sections
