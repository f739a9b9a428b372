"""Engine, plan and safetensors files: what is written is read back, and damage is an error, never a crash."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.builder.engine_file import HUGE_PAGE, EngineFile, EngineWriter
from precast.builder.plan import Buffer, Plan, PlanOp
from precast.errors import EngineError, SourceError
from precast.safetensors_file import SafetensorsFile, SafetensorsWriter

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
ATTRIBUTES = st.dictionaries(
    NAMES, st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20), max_size=4
)
BUFFERS = st.builds(
    Buffer,
    NAMES,
    st.sampled_from(["f32", "i8"]),
    st.sampled_from("TS"),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan whose ops name buffers that exist."""
    buffers = tuple(draw(st.lists(BUFFERS, max_size=5)))
    numbers = st.lists(st.integers(0, len(buffers) - 1), max_size=3).map(tuple) if buffers else st.just(())
    ops = st.builds(PlanOp, NAMES, numbers, numbers, st.lists(NAMES, max_size=3).map(tuple), ATTRIBUTES)
    return Plan(draw(ATTRIBUTES), buffers, tuple(draw(st.lists(ops, max_size=5))))


PLANS = plans()


@given(PLANS)
def test_a_plan_reads_back_as_written(plan: Plan) -> None:
    assert Plan.from_bytes(plan.to_bytes()) == plan


@given(PLANS, st.data())
def test_a_damaged_plan_is_an_error_or_another_plan(plan: Plan, data: st.DataObject) -> None:
    raw = bytearray(plan.to_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        with contextlib.suppress(ValueError):
            Plan.from_bytes(damaged)


def test_a_plan_whose_op_names_no_buffer_is_an_error() -> None:
    plan = Plan({}, (Buffer("x", "f32", "T", 4, 0, 0),), (PlanOp("quantize", (0,), (1,), ()),))
    with pytest.raises(ValueError, match="'quantize' names a buffer that does not exist"):
        Plan.from_bytes(plan.to_bytes())


def write_engine(path: Path, sections: dict[str, bytes]) -> None:
    writer = EngineWriter(path, [(name, "vector.f32", len(data)) for name, data in sections.items()])
    for name, section in sections.items():
        writer.add(name, section)
    writer.close()


@settings(max_examples=50)
@given(st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=6))
def test_an_engine_reads_back_as_written(sections: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.engine"
        write_engine(path, sections)
        engine = EngineFile.open(path)
        assert {name: bytes(engine.bytes(name)) for name in engine.sections} == sections
        assert not list(engine.damage())
        assert all(section.offset % 64 == 0 for section in engine.sections.values())


@settings(max_examples=50)
@given(
    st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=4),
    st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=4),
)
def test_an_engine_with_more_sections_reads_back_as_written(before: dict[str, bytes], more: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.engine"
        write_engine(path, before)
        announced = [(name, "vector.f32", len(data)) for name, data in more.items()]
        if before.keys() & more.keys():
            with pytest.raises(ValueError, match="unique"):
                EngineWriter.extend(path, announced)
            more = {}
        else:
            writer = EngineWriter.extend(path, announced)
            for name, section in more.items():
                with pytest.raises(EngineError):
                    EngineFile.open(path)
                writer.add(name, section)
            writer.close()
        engine = EngineFile.open(path)
        assert {name: bytes(engine.bytes(name)) for name in engine.sections} == before | more
        assert not list(engine.damage())


def test_large_sections_start_on_huge_pages(tmp_path: Path) -> None:
    write_engine(tmp_path / "e", {"a": b"x" * 100, "b": bytes(HUGE_PAGE), "c": b"y"})
    assert EngineFile.open(tmp_path / "e").sections["b"].offset % HUGE_PAGE == 0


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_engine_is_an_error_or_found_by_its_checksums(data: st.DataObject) -> None:
    sections = {"plan": b"p" * 100, "weights": bytes(range(256)) * 3, "tail": b"t"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.engine"
        write_engine(path, sections)
        raw = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(raw) - 1))
        change = data.draw(st.integers(1, 255))
        raw[place] ^= change
        path.write_bytes(raw)
        try:
            engine = EngineFile.open(path)
        except EngineError:
            return
        inside = [s.name for s in engine.sections.values() if s.offset <= place < s.offset + s.length]
        damaged = [name for name, _ in engine.damage()]
        assert damaged == inside


@pytest.mark.parametrize("keep", [0, 1, 63, 64, 100, 400, -1])
def test_a_truncated_engine_is_an_error(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "rank0.engine"
    write_engine(path, {"a": b"x" * 1000})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EngineError):
        EngineFile.open(path)


ARRAYS = st.sampled_from(
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.zeros((0, 4), np.float32),
        np.array(3, np.int8),
        np.arange(5).astype(ml_dtypes.bfloat16),
    ]
)


@settings(max_examples=50)
@given(st.dictionaries(NAMES.filter(lambda n: n != "__metadata__"), ARRAYS, min_size=1, max_size=4))
def test_safetensors_reads_back_as_written(tensors: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.int8): "I8", np.dtype(ml_dtypes.bfloat16): "BF16"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        writer = SafetensorsWriter(path, {n: (kinds[t.dtype], t.shape) for n, t in tensors.items()})
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        writer.close()
        read = SafetensorsFile.open(path)
        for name, tensor in tensors.items():
            assert read.tensor(name).tobytes() == tensor.tobytes()
            assert read.tensor(name).shape == tensor.shape


def test_the_library_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer = SafetensorsWriter(tmp_path / "x", {"a": ("F32", (3, 4))})
    writer.add("a", array)
    writer.close()
    assert (safetensors.numpy.load_file(tmp_path / "x")["a"] == array).all()


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_safetensors_header_is_an_error_or_harmless(data: st.DataObject) -> None:
    raw = bytearray(safetensors.numpy.save({"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.int8)}))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(raw)
        try:
            read = SafetensorsFile.open(path)
        except SourceError:
            return
        for name in read.tensors:
            read.tensor(name).tobytes()


HOSTILE = {
    "huge header": (1 << 60, b"{}"),
    "not JSON": (None, b"{"),
    "not an object": (None, b"[]"),
    "deep": (None, b"[" * 100_000),
    "duplicate": (None, b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":1}'),
    "negative": (None, b'{"a":{"dtype":"I8","shape":[-1],"data_offsets":[0,1]}}'),
    "overlap": (
        None,
        b'{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}}',
    ),
    "beyond": (None, b'{"a":{"dtype":"I8","shape":[9],"data_offsets":[0,9]}}'),
    "size": (None, b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,3]}}'),
    "dtype": (None, b'{"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}}'),
    "overflow": (None, b'{"a":{"dtype":"I8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_safetensors_header_is_refused(name: str, tmp_path: Path) -> None:
    length, header = HOSTILE[name]
    raw = (len(header) if length is None else length).to_bytes(8, "little") + header + b"\0\0\0\0"
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(SourceError):
        SafetensorsFile.open(tmp_path / "x")


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\3\4aaaaaaaa", "pickle"),
        (b"\x80\x02aaaaaa", "pickle"),
    ],
)
def test_files_that_are_something_else_are_recognised(head: bytes, word: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(head + b" " * 100)
    with pytest.raises(SourceError, match=word):
        SafetensorsFile.open(tmp_path / "x")
