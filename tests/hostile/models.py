"""Hostile Hugging Face folders: weights, indexes, configs."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.hostile.changes import (
    DEEP,
    GIB,
    JSON_TEXTS,
    Change,
    Hostile,
    bomb,
    both,
    file,
    keys,
    late,
    link,
    pipe,
    sparse,
)


def header(text: str | bytes, length: int | None = None, body: bytes = bytes(64)) -> Change:
    """model.safetensors with this header, which announces `length` bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return file("model.safetensors", struct.pack("<Q", len(raw) if length is None else length) + raw + body)


def entry(dtype: str = '"I8"', shape: str = "[1]", offsets: str = "[0,1]") -> str:
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'


def tensors(*entries: str) -> Change:
    return header("{" + ",".join(f'"t{i}":{text}' for i, text in enumerate(entries)) + "}", body=b"\0")


def index(weight_map: Any) -> Change:
    """A sharded folder with this weight map; its one shard is called a.safetensors."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


HEADERS: dict[str, Hostile] = {
    "header of 2^60 bytes": Hostile(header("{}", 1 << 60), "its header says"),
    "header behind the end": Hostile(header("{}", 1000), "its header says"),
    "header of a hundred megabytes of nothing": Hostile(
        both(
            file("model.safetensors", struct.pack("<Q", 90 << 20)),
            sparse("model.safetensors", 100 << 20),
        ),
        "has a header of",
    ),
    "no bytes": Hostile(file("model.safetensors", b""), "too few"),
    "header that is cut": Hostile(header('{"a":'), "damaged safetensors header"),
    "header of a list": Hostile(header("[]"), "not a JSON object"),
    "header that is not UTF-8": Hostile(header(b'{"\xff": 1}'), "damaged safetensors header"),
    "header that nests": Hostile(header("[" * DEEP), "damaged safetensors header"),
    "header of many lists": Hostile(late(lambda: header('{"a":[' + "[]," * 5_000_000 + "0]}")), "values"),
    "header of many names": Hostile(
        late(lambda: header("{" + ",".join(f'"{i:x}":0' for i in range(1_700_000)) + "}")), "header of"
    ),
    "header with a huge integer": Hostile(tensors(entry(shape=f"[{'9' * 5000}]")), "damaged safetensors header"),
    "header with NaN": Hostile(tensors(entry(shape="[NaN]")), "bad entry"),
    "tensor of a million dimensions": Hostile(
        late(lambda: tensors(entry(shape="[" + ",".join(["1152921504606846975"] * 700_000) + "]"))), "dimensions"
    ),
    "name that stands twice": Hostile(header('{"a":' + entry() + ',"a":' + entry() + "}"), "stands twice"),
    "ranges that overlap": Hostile(tensors(entry(), entry(offsets="[0,1]")), "lies over another"),
    "range behind the end": Hostile(tensors(entry(shape="[999]", offsets="[0,999]")), "truncated"),
    "range of 2^60 bytes": Hostile(tensors(entry(offsets=f"[{1 << 59},{1 << 60}]")), "truncated"),
    "range that ends before it begins": Hostile(tensors(entry(offsets="[5,1]")), "truncated"),
    "negative range": Hostile(tensors(entry(offsets="[-1,0]")), "bad entry"),
    "range of fractions": Hostile(tensors(entry(offsets="[0.0,1.0]")), "bad entry"),
    "range of flags": Hostile(tensors(entry(offsets="[false,true]")), "bad entry"),
    "shape that does not fill its range": Hostile(tensors(entry(shape="[3]")), "does not fill"),
    "shape that overflows": Hostile(tensors(entry(shape="[4294967296,4294967296]", offsets="[0,0]")), "does not fill"),
    "unknown dtype": Hostile(tensors(entry(dtype='"F7"')), "F7"),
    "dtype of a list": Hostile(tensors(entry(dtype="[]")), "does not read"),
    "dtype of bits": Hostile(tensors(entry(dtype='"F4"')), "does not read"),
    "integers for weights": Hostile(tensors(entry()), "I8"),
    "name of a megabyte": Hostile(header('{"' + "n" * (1 << 20) + '":0}'), "bad entry"),
    "name that writes on the terminal": Hostile(header('{"\\u001b[2J\\nerror: all is well":0}'), "bad entry"),
    "name that is not Unicode": Hostile(header('{"\\ud800":0}'), "bad entry"),
    "weights that are a pipe": Hostile(pipe("model.safetensors"), "not a regular file"),
    "weights that are a device": Hostile(link("model.safetensors", "/dev/zero"), "not a regular file"),
    "weights that link to themselves": Hostile(link("model.safetensors", "model.safetensors"), "model.safetensors"),
    "weights that are a pickle": Hostile(file("model.safetensors", b"\x80\x02" + bytes(100)), "pickle"),
    "weights of a terabyte of nothing": Hostile(sparse("model.safetensors", 1 << 40), "model.safetensors"),
}

INDEXES: dict[str, Hostile] = {
    "shard above the folder": Hostile(index({"a": "../a.safetensors"}), "not a safetensors file of this folder"),
    "shard elsewhere": Hostile(index({"a": "/etc/passwd"}), "not a safetensors file of this folder"),
    "shard in a folder below": Hostile(index({"a": "x/../a.safetensors"}), "not a safetensors file of this folder"),
    "shard of dots": Hostile(index({"a": ".."}), "not a safetensors file of this folder"),
    "shard without a name": Hostile(index({"a": ""}), "not a safetensors file of this folder"),
    "shard that is a number": Hostile(index({"a": 5}), "not a safetensors file of this folder"),
    "shard with a zero byte": Hostile(index({"a": "a\0.safetensors"}), "lacks"),
    "shard with a name that is too long": Hostile(index({"a": "a" * 5000 + ".safetensors"}), "aaaa"),
    "shard whose name is not Unicode": Hostile(index({"a": "\ud800.safetensors"}), "lacks"),
    "shard that is missing": Hostile(index({"a": "b.safetensors"}), "lacks b.safetensors"),
    "shard that is a pipe": Hostile(both(index({"a": "b.safetensors"}), pipe("b.safetensors")), "lacks"),
    "shard that is a device": Hostile(both(index({"a": "b.safetensors"}), link("b.safetensors", "/dev/zero")), "lacks"),
    "shard that links elsewhere": Hostile(
        both(index({"a": "b.safetensors"}), link("b.safetensors", "/etc/passwd")), "b.safetensors"
    ),
    "shard that lacks the tensor": Hostile(index({"a": "a.safetensors"}), "lacks the tensor a"),
    "weight map of a list": Hostile(index([]), "no usable weight_map"),
    "empty weight map": Hostile(index({}), "no usable weight_map"),
    "index that is a pipe": Hostile(both(index({}), pipe("model.safetensors.index.json")), "not a regular file"),
    "index of a hundred megabytes": Hostile(
        both(index({}), file("model.safetensors.index.json", bomb)), "model.safetensors.index.json"
    ),
}


def config(**changes: Any) -> Change:
    return keys("config.json", **changes)


CONFIGS: dict[str, Hostile] = {
    **{f"config: {name}": Hostile(file("config.json", data), "config.json") for name, data in JSON_TEXTS.items()},
    "config of 60 megabytes": Hostile(file("config.json", bomb), "config.json"),
    "config of many lists": Hostile(file("config.json", b'{"a": [' + b"[]," * 1_300_000 + b"0]}"), "config.json"),
    "config with NaN": Hostile(config(initializer_range=float("nan")), "NaN"),
    "config that is a pipe": Hostile(pipe("config.json"), "config.json"),
    "config that is a device": Hostile(link("config.json", "/dev/zero"), "config.json"),
    "billions of layers": Hostile(config(num_hidden_layers=2**31 - 1), "layers"),
    "many layers": Hostile(config(num_hidden_layers=10_000), "layers"),
    "huge sizes": Hostile(config(vocab_size=2**31 - 1, hidden_size=2**31 - 1), "config asks for"),
    "many heads": Hostile(config(num_attention_heads=2**31 - 1, num_key_value_heads=1), "asks for"),
    "value that is a megabyte": Hostile(config(hidden_act="x" * (1 << 20)), "hidden_act"),
    "value that writes on the terminal": Hostile(config(hidden_act="\x1b[2J\nerror: all is well"), "hidden_act"),
    "unknown family": Hostile(config(model_type="\x1b[2J" + "y" * 100_000), "model_type"),
    "millions of layer types": Hostile(config(layer_types=["full_attention"] * 150_000), "layer_types"),
    "rope of many factors": Hostile(
        config(
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 200_000,
                "long_factor": [1.0] * 200_000,
                "original_max_position_embeddings": 64,
            }
        ),
        "short_factor",
    ),
    "positions without end": Hostile(
        config(max_position_embeddings=2**31 - 1), "", works=("inspect", "convert", "run")
    ),
}

SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def side_files() -> dict[str, Hostile]:
    """What stands beside weights and config."""
    found: dict[str, Hostile] = {}
    for name in (*SIDE_FILES, "tokenizer.json"):
        says = "is not a tokenizer" if name == "tokenizer.json" else name
        for kind, data in JSON_TEXTS.items():
            lfs = kind == "LFS pointer"
            found[f"{name}: {kind}"] = Hostile(file(name, data), "git lfs pull" if lfs else says)
    for name in SIDE_FILES:
        found[f"{name} that is a pipe"] = Hostile(pipe(name), "not a regular file")
        found[f"{name} that is a device"] = Hostile(link(name, "/dev/zero"), "not a regular file")
        found[f"{name} of 60 megabytes"] = Hostile(file(name, bomb), "larger than")
    found["tokenizer.json of a gigabyte of nothing"] = Hostile(sparse("tokenizer.json", GIB), "larger than")
    found["tokenizer.json of 60 megabytes"] = Hostile(file("tokenizer.json", bomb), "values: not a tokenizer")
    return found


SIDE_TEXTS = side_files()
