"""The GGUF file format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), read without trusting it.

Our own reader: the `gguf` package's takes seconds for a large vocabulary, and does not end when a damaged file
announces 2⁶⁰ values. Only its table of block sizes and its dequantizers are used.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from precast import mapped
from precast.errors import SourceError

DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

MAX_PADDING = 4096
"""Bytes behind the last tensor."""

MAX_METADATA_BYTES = 64 << 20
MAX_VALUES = 1 << 21
MAX_NAMES = 1 << 17
"""Limits of fields and tensor infos: their bytes, the values in all arrays, and the names. A vocabulary of 262k tokens
takes 15 MB and 1.3 million values. A file may announce as much as it has bytes, which can be holes."""

STRING, ARRAY = 8, 9

# Value type → struct format.
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True)
class TensorInfo:
    """`shape` in row-major order (GGUF stores it reversed), and where the tensor's bytes are."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    size: int


class GgufFile:
    """A mapped file: `fields` (metadata by key) and `tensors`, whose ranges lie inside the file."""

    def __init__(self, path: Path) -> None:
        """Raises SourceError for anything that is not a whole, little-endian GGUF file of version 2 or 3."""
        self.path = path
        try:
            with open(path, "rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read: {error}") from None
        self._place, self._values_left = 0, MAX_VALUES
        try:
            self.fields, self.tensors = self._read()
        except (struct.error, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(f"{path} is not a whole GGUF file: {error}") from None

    def rows(self, name: str, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Rows of a matrix, or elements of a vector, dequantized to f32."""
        info = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, info.size, info.offset)
        with np.errstate(all="ignore"):  # damaged scales: what comes out is checked by who asked
            if len(info.shape) < 2:
                read = np.array(dequantize(raw, info.kind)[rows], np.float32)
            else:
                read = np.array(dequantize(raw.reshape(math.prod(info.shape[:-1]), -1)[rows], info.kind), np.float32)
        mapped.release(self._data, info.offset, info.offset + info.size)
        return read

    def _fail(self, what: str) -> SourceError:
        return SourceError(f"{self.path} is not a whole GGUF file: {what}")

    def _take(self, form: str) -> Any:
        if self._place > MAX_METADATA_BYTES:
            raise self._fail(f"its fields and tensor infos take more than {MAX_METADATA_BYTES >> 20} MiB")
        (value,) = struct.unpack_from(form, self._data, self._place)
        self._place += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._take("<Q")
        if length > len(self._data) - self._place:
            raise self._fail(f"a string of {length} bytes ends behind the end")
        if length > MAX_METADATA_BYTES:
            raise self._fail(f"a string of {length} bytes")
        self._place += length
        return self._data[self._place - length : self._place].decode()

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self._take(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY or depth > 1:
            raise self._fail(f"a value of the unknown type {kind}")
        inner, count = self._take("<I"), self._take("<Q")
        if count > len(self._data) - self._place:  # every value takes at least a byte
            raise self._fail(f"an array of {count} values ends behind the end")
        self._values_left -= count
        if self._values_left < 0:
            raise self._fail(f"its arrays hold more than {MAX_VALUES} values")
        if inner in SCALARS:
            form = f"<{count}{SCALARS[inner][1]}"
            values = list(struct.unpack_from(form, self._data, self._place))
            self._place += struct.calcsize(form)
            return values
        return [self._value(inner, depth + 1) for _ in range(count)]

    def _read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        magic, version = self._data[:4], 0
        self._place = 4
        version = self._take("<I")
        if magic != b"GGUF" or version not in (2, 3):
            raise SourceError(f"{self.path} is GGUF version {version}, big-endian or foreign; 2 and 3 are supported")
        tensor_count, field_count = self._take("<Q"), self._take("<Q")
        if tensor_count > MAX_NAMES or field_count > MAX_NAMES:
            raise self._fail(f"{tensor_count} tensors and {field_count} fields; at most {MAX_NAMES} are read")
        fields: dict[str, Any] = {}
        for _ in range(field_count):
            key = self._string()
            if key in fields:
                raise self._fail(f"the field {key} stands twice")
            fields[key] = self._value(self._take("<I"))
        alignment = fields.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._fail(f"alignment {alignment!r} is no power of two")
        infos: dict[str, tuple[list[int], int, int]] = {}
        for _ in range(tensor_count):
            name, count = self._string(), self._take("<I")
            if count > MAX_DIMENSIONS:
                raise self._fail(f"tensor {name} has {count} dimensions")
            if name in infos:
                raise self._fail(f"the tensor {name} stands twice")
            infos[name] = [self._take("<Q") for _ in range(count)], self._take("<I"), self._take("<Q")
        start = -(-self._place // alignment) * alignment
        tensors = {name: self._tensor(name, dims, kind, start + at) for name, (dims, kind, at) in infos.items()}
        self._check_places(tensors, start, alignment)
        return fields, tensors

    def _check_places(self, tensors: dict[str, TensorInfo], start: int, alignment: int) -> None:
        """One tensor behind the other: an offset that is damaged would give a tensor the bytes of another."""
        end = start
        for name, info in sorted(tensors.items(), key=lambda item: item[1].offset):
            if info.offset != end:
                raise self._fail(f"tensor {name} begins at byte {info.offset} instead of {end}")
            end = info.offset + -(-info.size // alignment) * alignment
        if tensors and len(self._data) - end > max(alignment, MAX_PADDING):
            raise self._fail(f"{len(self._data) - end} bytes stand behind its last tensor")

    def _tensor(self, name: str, dims: list[int], kind: int, offset: int) -> TensorInfo:
        try:
            quantization = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[quantization]
            dequantize(np.zeros((1, block_bytes), np.uint8), quantization)
        except (ValueError, KeyError, NotImplementedError):
            known = next((its.name for its in GGMLQuantizationType if its == kind), str(kind))
            raise SourceError(f"{self.path}: tensor {name} has the type {known}, which precast does not read") from None
        if not dims or dims[0] % block or not all(0 < n < 1 << 40 for n in dims):
            raise self._fail(f"tensor {name} cannot have the shape {dims[::-1]}")
        size = math.prod(dims) // block * block_bytes
        if offset + size > len(self._data):
            raise self._fail(f"tensor {name} ends at byte {offset + size} of {len(self._data)}: truncated?")
        return TensorInfo(quantization, tuple(reversed(dims)), offset, size)
