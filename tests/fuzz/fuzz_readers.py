"""The binary readers that are written in Python, fuzzed by hand: `python -m tests.fuzz.fuzz_readers NAME FOLDER
-max_total_time=600`, with atheris from PyPI. NAME: safetensors, gguf or sentencepiece. FOLDER keeps the inputs.

What is found becomes an example in tests/property or tests/hostile, which pytest runs.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import atheris

from precast import safetensors_file
from precast.errors import PrecastError
from precast.quantize.sources import gguf_file, gguf_reader, gguf_tokenizer, sentencepiece

MAX_TENSOR = 1 << 20


@contextlib.contextmanager
def memory_file(data: bytes) -> Iterator[Path]:
    """A file of these bytes that is on no disk."""
    descriptor = os.memfd_create("input")
    try:
        os.write(descriptor, data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def read_safetensors(data: bytes) -> None:
    """Raw bytes, and the same as a header with as many bytes behind it as its last number says."""
    for raw in (data, struct.pack("<Q", len(data)) + data + bytes(1 << (len(data) % 8))):
        with memory_file(raw) as path, contextlib.suppress(PrecastError):
            file = safetensors_file.SafetensorsFile.open(path)
            for name in file.tensors:
                file.tensor(name).tobytes()


def read_gguf(data: bytes) -> None:
    """Fields, tensor infos, tokenizer, and the tensors that are small."""
    with memory_file(data) as path, contextlib.suppress(PrecastError):
        source = gguf_file.GgufSource(path)
        for name, shape in source.shapes().items():
            if all(0 < n < MAX_TENSOR for n in shape):
                source.rows(name, slice(0, 2))


def read_pieces(data: bytes) -> None:
    """A model, and the tokenizer that it makes. The library raises bare Exception for what makes none."""
    with memory_file(data) as path:
        try:
            model = sentencepiece.read_model(path)
        except PrecastError:
            return
        with contextlib.suppress(Exception):
            model.tokenizer().encode("the quick 你好 \n")


def seeds(name: str) -> list[bytes]:
    """Good files."""
    from gguf import GGMLQuantizationType

    from tests.gguf_models import write_llama
    from tests.hostile.texts import sentencepiece as write_pieces
    from tests.tiny import tiny_llama

    sizes = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 16, "num_hidden_layers": 1}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if name == "safetensors":
            header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            header += b'"b":{"dtype":"I8","shape":[4,0],"data_offsets":[4,4]}}'
            return [header, struct.pack("<Q", len(header)) + header + bytes(4)]
        if name == "gguf":
            write_llama(folder / "m.gguf", tiny_llama(folder / "hf", **sizes), GGMLQuantizationType.Q8_0)
            return [(folder / "m.gguf").read_bytes()]
        (folder / "tokenizer.json").write_text("")
        write_pieces("a", "b", "ab", "▁a")(folder)
        return [(folder / "tokenizer.model").read_bytes()]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "safetensors": read_safetensors,
    "gguf": read_gguf,
    "sentencepiece": read_pieces,
}


def instrument(module: ModuleType) -> None:
    """Shows the fuzzer the branches of a module: atheris does not see the imports of an editable install."""
    for value in vars(module).values():
        for found in vars(value).values() if isinstance(value, type) else (value,):
            function = getattr(found, "__func__", found)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                atheris.instrument_func(function)


def main() -> None:
    """See above."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for module in (safetensors_file, gguf_file, gguf_reader, gguf_tokenizer, sentencepiece):
        instrument(module)
    for i, data in enumerate(seeds(name)):
        (folder / f"seed{i}").write_bytes(data)
    atheris.Setup([sys.argv[0], str(folder), "-timeout=30", "-rss_limit_mb=3000", *sys.argv[3:]], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
