"""A damaged GGUF file is an error of one sentence or another model, never a crash, a hang or a traceback."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.errors import PrecastError
from precast.quantize import ConvertOptions, convert
from tests.gguf_models import write_llama
from tests.tiny import tiny_llama

SMALL = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 16, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    write_llama(folder / "m.gguf", tiny_llama(folder / "hf", **SMALL), GGMLQuantizationType.Q8_0)
    return (folder / "m.gguf").read_bytes()


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_file_is_an_error_or_another_model(raw: bytes, data: st.DataObject) -> None:
    damaged = bytearray(raw)
    limit = data.draw(st.sampled_from([900, len(raw) - 1]))  # the fields of the model, or anywhere
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, limit))
        change = data.draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\xff" * 8]) | st.binary(min_size=1, max_size=2))
        damaged[place : place + len(change)] = change
    damaged = damaged[: data.draw(st.sampled_from([len(damaged), data.draw(st.integers(0, len(damaged)))]))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(damaged)
        with contextlib.suppress(PrecastError):
            convert(path, Path(folder) / "ckpt", ConvertOptions("int8"))
