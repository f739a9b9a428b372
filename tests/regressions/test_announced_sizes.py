"""Files that announce more than they could mean, as holes on the disk or as devices: refused before memory is taken."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from precast.errors import PrecastError
from precast.pipeline import kind_of
from precast.quantize import convert
from precast.quantize.sources import open_source
from tests.tiny import tiny_chat_model

GIB = 1 << 30


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def array(kind: int, count: int) -> bytes:
    return text("x") + struct.pack("<IIQ", 9, kind, count)


# Counts of tensors and fields, what follows them, and what the refusal says. The files go on with a GiB of zeros.
GGUF = {
    "bytes": (0, 1, array(0, 900 << 20), "hold more than"),
    "numbers": (0, 1, array(10, 100 << 20), "hold more than"),
    "empty texts": (0, 1, array(8, 100 << 20), "hold more than"),
    "arrays of arrays": (0, 1, array(9, 1 << 25), "hold more than"),
    "one text": (0, 1, text("x") + struct.pack("<IQ", 8, GIB - 200), "a string of"),
    "tensors": (1 << 62, 0, b"", "are read"),
    "fields": (0, 1 << 62, b"", "are read"),
}


@pytest.mark.parametrize("case", GGUF)
def test_a_gguf_that_announces_too_much_is_refused(case: str, tmp_path: Path) -> None:
    tensors, fields, rest, says = GGUF[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + rest)
    os.truncate(path, GIB)
    with pytest.raises(PrecastError, match=says):
        open_source(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "hf"
    tiny_chat_model(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "hf"))


def test_a_safetensors_header_that_is_too_large_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 90 << 20))
    os.truncate(folder / "model.safetensors", 100 << 20)
    with pytest.raises(PrecastError, match="has a header of"):
        open_source(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"])
def test_a_side_file_that_is_too_large_is_refused(name: str, folder: Path) -> None:
    os.truncate(folder / name, GIB)
    with pytest.raises(PrecastError, match="is larger than"):
        open_source(folder)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"]
)
def test_a_pipe_or_a_device_in_a_model_folder_is_refused(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(PrecastError, match="not a regular file"):
        convert(folder, folder.parent / "out")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(PrecastError, match="not a regular file"):
        convert(folder, folder.parent / "out")


def test_a_config_that_is_a_pipe_is_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert kind_of(folder) == "source"
    with pytest.raises(PrecastError, match=r"no config\.json"):
        open_source(folder)
