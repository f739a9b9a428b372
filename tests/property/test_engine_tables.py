"""Engine files whose checksums are right and whose content is hostile: an error, or an engine; never a crash."""

from __future__ import annotations

import contextlib
import struct
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precast._native import runtime
from precast.builder.engine_file import CHECKSUM_BLOCK, HEADER, HEADER_BYTES, MAGIC, EngineFile, EngineWriter
from precast.builder.plan import Plan
from precast.errors import EngineError
from precast.quantize import ConvertOptions, convert
from tests.tiny import tiny_llama

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
NUMBERS = st.sampled_from([0, 1, 63, 64, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1]) | st.integers(0, 5000)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from precast.builder import build

    folder = tmp_path_factory.mktemp("tables")
    tiny_llama(folder / "hf", **SIZES)
    convert(folder / "hf", folder / "ckpt", ConvertOptions("int8"))
    build(folder / "ckpt", folder / "engine")
    return (folder / "engine" / "rank0.engine").read_bytes()


def with_table(raw: bytes, table: bytes, count: int | None = None) -> bytes:
    """The file with another table of the same length, and checksums that fit it."""
    head = list(HEADER.unpack(raw[:HEADER_BYTES]))
    head[2] = head[2] if count is None else count
    head[6] = zlib.crc32(table)
    header = HEADER.pack(*head[:-1], 0)
    header = header[:60] + struct.pack("<I", zlib.crc32(header[:60]))
    return header + raw[HEADER_BYTES : head[4]] + table


def try_both(raw: bytes) -> None:
    """Both readers open it or raise EngineError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.engine"
        path.write_bytes(raw)
        with contextlib.suppress(EngineError):
            opened = EngineFile.open(path)
            list(opened.damage())
            for name in opened.sections:
                bytes(opened.bytes(name))
        with contextlib.suppress(EngineError):
            runtime.Engine(path, 1)


@settings(max_examples=150)
@given(st.data())
def test_a_table_with_changed_bytes(engine: bytes, data: st.DataObject) -> None:
    at, size = HEADER.unpack(engine[:HEADER_BYTES])[4:6]
    table = bytearray(engine[at:])
    for _ in range(data.draw(st.integers(1, 3))):
        table[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    count = data.draw(st.none() | st.integers(0, 2**32 - 1))
    try_both(with_table(engine, bytes(table), count))


@settings(max_examples=150)
@given(NUMBERS, NUMBERS, st.sampled_from([CHECKSUM_BLOCK, 0, 1, 2**32 - 1]))
def test_a_section_that_lies_anywhere(offset: int, length: int, block: int) -> None:
    entry = struct.pack("<H", 1) + b"a" + struct.pack("<H", 7) + b"plan.v0" + struct.pack("<QQI", offset, length, block)
    table = entry + bytes(4)
    size = 8192
    head = HEADER.pack(MAGIC, 0, 1, size, size - len(table), len(table), zlib.crc32(table), 0)
    header = head[:60] + struct.pack("<I", zlib.crc32(head[:60]))
    try_both(header.ljust(size - len(table), b"\0") + table)


@settings(max_examples=200)
@given(st.data())
def test_a_plan_with_changed_bytes(engine: bytes, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "original"
        path.write_bytes(engine)
        original = EngineFile.open(path)
        plan = bytearray(original.bytes("plan"))
        for _ in range(data.draw(st.integers(1, 4))):
            plan[data.draw(st.integers(0, len(plan) - 1))] = data.draw(st.integers(0, 255))
        sections = [(s.name, s.tag, s.length) for s in original.sections.values()]
        writer = EngineWriter(Path(folder) / "changed", sections)
        for name, _, _ in sections:
            writer.add(name, bytes(plan) if name == "plan" else bytes(original.bytes(name)))
        writer.close()
        try_both((Path(folder) / "changed").read_bytes())
    with contextlib.suppress(ValueError):
        Plan.from_bytes(bytes(plan)).to_text()
