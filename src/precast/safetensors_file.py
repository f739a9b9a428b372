"""safetensors files (https://github.com/huggingface/safetensors, format 0.x): a reader that maps and trusts nothing,
and a writer that streams.

Our own, since the library's numpy side holds all tensors of a file in memory to write them, and copies to read.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precast import files, mapped
from precast.errors import SourceError
from precast.json_file import LFS_POINTER, may_hold_values

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}

MAX_HEADER_BYTES = 16 << 20
"""About 130,000 tensors. The safetensors library allows 100 MB, which take Python half a minute and gigabytes."""

MAX_HEADER_VALUES = 1_600_000
"""As many as the entries of 160,000 tensors hold."""

MAX_DIMENSIONS = 8

WRITE_BYTES = 1 << 24
"""Bytes handed to one write."""


@dataclass(frozen=True)
class TensorInfo:
    """dtype by its safetensors name, shape, and the byte range [begin, end) behind the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """A mapped file with a checked header: known dtypes, ranges that fit their shapes and fill the file."""

    def __init__(self, path: Path, data: mmap.mmap, start: int, tensors: dict[str, TensorInfo]) -> None:
        self.path = path
        self.tensors = tensors
        self._data = data
        self._start = start

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Maps a file and checks its header; tensors stay untouched.

        Raises SourceError, with one sentence, for anything that is not a whole safetensors file.
        """
        try:
            if path.exists() and not path.is_file():  # a pipe may have no writer
                raise SourceError(f"{path} cannot be read: it is not a regular file")
            with open(path, "rb") as file:
                head = file.read(200)
                size = file.seek(0, 2)
                _recognise(path, head, size)
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from None
        (length,) = struct.unpack("<Q", head[:8])
        if MAX_HEADER_BYTES < length <= size - 8:
            raise SourceError(f"{path} has a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
        if length > size - 8:
            raise SourceError(f"{path} is not a whole safetensors file: its header says {length} bytes of {size}")
        tensors = _read_header(path, data[8 : 8 + length], size - 8 - length)
        return cls(path, data, 8 + length, tensors)

    def tensor(self, name: str) -> Array:
        """The tensor as a read-only array over the mapping."""
        info = self.tensors[name]
        dtype = DTYPES[info.dtype]
        count = math.prod(info.shape)
        return np.frombuffer(self._data, dtype, count, self._start + info.begin).reshape(info.shape)

    def release(self, name: str) -> None:
        """Lets the pages of a tensor go that was read (`mapped.release`); it can be read again."""
        info = self.tensors[name]
        if info.end > info.begin:
            mapped.release(self._data, self._start + info.begin, self._start + info.end)


def _recognise(path: Path, head: bytes, size: int) -> None:
    if head.startswith(LFS_POINTER):
        raise SourceError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
    if head.startswith(b"PK\3\4") or head.startswith(b"\x80\x02"):
        raise SourceError(f"{path} is a pickle, not safetensors; precast reads safetensors only")
    if size < 8:
        raise SourceError(f"{path} is not a safetensors file: {size} bytes are too few")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name stands twice")
    return out


def _read_header(path: Path, raw: bytes, data_bytes: int) -> dict[str, TensorInfo]:
    if may_hold_values(raw) > MAX_HEADER_VALUES:
        raise SourceError(f"{path} has a header of more than {MAX_HEADER_VALUES} values: not that of a model")
    try:
        header = json.loads(raw, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} has a damaged safetensors header: {error}") from None
    if not isinstance(header, dict):
        raise SourceError(f"{path} has a damaged safetensors header: not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _tensor_info(path, name, entry, data_bytes) for name, entry in header.items()}
    end = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin < end:
            raise SourceError(f"{path}: tensor {name} lies over another one")
        if info.begin > end:
            raise SourceError(f"{path} has {info.begin - end} bytes that belong to no tensor, before {name}")
        end = info.end
    if end < data_bytes:
        raise SourceError(f"{path} has {data_bytes - end} bytes behind its last tensor: it is damaged")
    return tensors


def _tensor_info(path: Path, name: str, entry: Any, data_bytes: int) -> TensorInfo:
    def number(value: Any) -> bool:
        return type(value) is int and 0 <= value <= 1 << 60

    ok = (
        isinstance(entry, dict) and isinstance(entry.get("shape"), list) and isinstance(entry.get("data_offsets"), list)
    )
    if not ok or not all(map(number, entry["shape"] + entry["data_offsets"])) or len(entry["data_offsets"]) != 2:
        raise SourceError(f"{path} has a damaged safetensors header: bad entry for tensor {name}")
    dtype, shape, (begin, end) = entry.get("dtype"), tuple(entry["shape"]), entry["data_offsets"]
    if len(shape) > MAX_DIMENSIONS:
        raise SourceError(f"{path}: tensor {name} has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are supported")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SourceError(f"{path}: tensor {name} has dtype {dtype!r}, which precast does not read")
    if not begin <= end <= data_bytes:
        raise SourceError(f"{path} is truncated: tensor {name} ends at byte {end} of {data_bytes}")
    if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise SourceError(f"{path}: tensor {name} of shape {list(shape)} does not fill its {end - begin} bytes")
    return TensorInfo(dtype, shape, begin, end)


class SafetensorsWriter:
    """Writes a file whose tensors' dtypes and shapes are known beforehand, one tensor at a time."""

    def __init__(self, path: Path, shapes: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        """`shapes`: name → (safetensors dtype, shape), in the order in which `add` will come."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        place = 0
        for name, (dtype, shape) in shapes.items():
            size = math.prod(shape) * DTYPES[dtype].itemsize
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + size]}
            place += size
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        self._waiting = dict(shapes)
        self._file = files.create(path)
        files.write(self._file, struct.pack("<Q", len(raw)) + raw)

    def add(self, name: str, tensor: Array) -> None:
        """Writes the next tensor. Raises ValueError when it is not the announced one."""
        self.add_blocks(name, (tensor,))

    def add_blocks(self, name: str, blocks: Iterable[Array]) -> None:
        """Writes the next tensor, which comes in blocks of its first dimension. Raises ValueError when the blocks do
        not make the announced tensor."""
        expected, (dtype, shape) = next(iter(self._waiting.items()), ("", ("", ())))
        if name != expected:
            raise ValueError(f"tensor {name} comes where {expected or 'the end'} was announced")
        rows = 0
        for block in blocks:
            if block.dtype != DTYPES[dtype] or block.shape[1:] != shape[1:] or block.ndim != len(shape):
                raise ValueError(f"tensor {name}: a block {block.dtype} {block.shape} of the announced {dtype} {shape}")
            rows += len(block) if shape else 0
            view = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
            for start in range(0, view.size, WRITE_BYTES):
                files.write(self._file, view[start : start + WRITE_BYTES].data)
        if shape and rows != shape[0]:
            raise ValueError(f"tensor {name} has {rows} rows, {shape[0]} were announced")
        del self._waiting[name]

    def close(self) -> None:
        """Flushes. Raises ValueError when announced tensors are missing."""
        if self._waiting:
            raise ValueError(f"tensor {next(iter(self._waiting))} was announced and not written")
        self._file.flush()
        files.fsync(self._file.fileno())
        self._file.close()

    def abort(self) -> None:
        """Closes the file as it is."""
        self._file.close()
