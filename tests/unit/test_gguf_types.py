"""Every tensor type that the gguf package dequantizes is read as it does, whole and in parts; others are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from precast.errors import SourceError
from precast.quantize.sources.gguf_reader import GgufFile

ROWS, BLOCKS = 7, 3


def decoded(kind: GGMLQuantizationType) -> bool:
    """Whether the gguf package has a dequantizer of the type."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


TYPES = [kind.name for kind in GGMLQuantizationType if decoded(kind)]
OTHERS = [kind.name for kind in GGMLQuantizationType if not decoded(kind)]


def raw_blocks(kind: GGMLQuantizationType) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Random blocks, as bytes [ROWS, BLOCKS · block bytes]. Every bit pattern is a block; some scales are NaN."""
    size = GGML_QUANT_SIZES[kind][1]
    return np.random.default_rng(size).integers(0, 256, (ROWS, BLOCKS * size), np.uint8)


def write(path: Path, kind: GGMLQuantizationType) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("odd", np.zeros(3, np.float32))  # so that the next one starts behind a gap
    writer.add_tensor("x", raw_blocks(kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_there_are_types() -> None:
    assert {"F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"} <= set(TYPES)
    assert {"Q8_K", "I32", "F64"} <= set(OTHERS)


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_read_as_the_gguf_package_reads_it(name: str, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[name]
    write(tmp_path / "m.gguf", kind)
    with np.errstate(all="ignore"):
        expected = dequantize(raw_blocks(kind), kind)
    file = GgufFile(tmp_path / "m.gguf")
    assert file.tensors["x"].shape == expected.shape == (ROWS, BLOCKS * GGML_QUANT_SIZES[kind][0])
    for rows in (slice(None), slice(2, 5), np.array([6, 0, 3])):
        read = file.rows("x", rows)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, expected[rows].astype(np.float32))
    assert np.isfinite(expected).any()


@pytest.mark.parametrize("name", OTHERS)
def test_another_type_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", GGMLQuantizationType[name])
    with pytest.raises(SourceError, match=f"tensor x has the type {name}, which precast does not read"):
        GgufFile(tmp_path / "m.gguf")


def test_an_unknown_type_is_refused_by_its_number(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", GGMLQuantizationType.F32)
    raw = (tmp_path / "m.gguf").read_bytes()
    shape = b"".join(n.to_bytes(8, "little") for n in (BLOCKS, ROWS))
    at = raw.index(shape) + len(shape)
    (tmp_path / "m.gguf").write_bytes(raw[:at] + (77).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(SourceError, match="tensor x has the type 77"):
        GgufFile(tmp_path / "m.gguf")
