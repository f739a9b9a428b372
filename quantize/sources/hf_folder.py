"""A Hugging Face folder: config.json and safetensors, single or sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precast import files
from precast.errors import SourceError
from precast.quantize.sources.source import Array, Source
from precast.runtime.text.tokenizer import read_json
from precast.safetensors_file import SafetensorsFile

COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class HfFolder(Source):
    """Opened: every header read, every index entry found, no tensor touched."""

    kind = "huggingface"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = str(folder)
        if not (folder / "config.json").is_file():
            raise SourceError(f"{folder} has no config.json: not a Hugging Face model folder")
        self.config: dict[str, Any] = read_json(folder / "config.json")
        if quantized := self.config.get("quantization_config"):
            method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
            raise SourceError(f"{folder} is already quantized ({method}); precast converts unquantized models so far")
        self._home: dict[str, SafetensorsFile] = {}
        for name, names in self._shards().items():
            shard = SafetensorsFile.open(folder / name)
            for tensor in names if names is not None else shard.tensors:
                if tensor not in shard.tensors:
                    raise SourceError(f"{folder / name} lacks the tensor {tensor}, which the index puts there")
                self._home[tensor] = shard
        found = {_DTYPES.get(self._home[name].tensors[name].dtype) for name in self._home}
        if None in found or not found:
            raise SourceError(f"{folder} holds weights that are not float32, bfloat16 or float16")
        self.dtype = next(d for d in ("float32", "float16", "bfloat16") if d in found)

    def _shards(self) -> dict[str, list[str] | None]:
        """Shard file → the tensors it must hold (None: all that it has)."""
        if (self.folder / "model.safetensors").exists():
            return {"model.safetensors": None}
        index = read_json(self.folder / "model.safetensors.index.json").get("weight_map")
        if index is None:
            if any(self.folder.glob("*.bin")) or any(self.folder.glob("*.pt*")):
                raise SourceError(f"{self.folder} holds pickles (.bin, .pt); precast reads safetensors only")
            raise SourceError(f"{self.folder} has neither model.safetensors nor model.safetensors.index.json")
        shards: dict[str, list[str] | None] = {}
        if not isinstance(index, dict) or not index:
            raise SourceError(f"{self.folder}: model.safetensors.index.json has no usable weight_map")
        for tensor, name in index.items():
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise SourceError(f"{self.folder}: the index sends {tensor} to {name!r}, not a file of this folder")
            names = shards.setdefault(name, [])
            assert names is not None
            names.append(tensor)
        for name in shards:
            if not (self.folder / name).exists():
                raise SourceError(f"{self.folder} lacks {name}, which the index names; the download is not complete")
        return shards

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shard.tensors[name].shape for name, shard in self._home.items()}

    def tensor(self, name: str) -> Array:
        return self._home[name].tensor(name)

    def write_side_files(self, folder: Path) -> None:
        for name in COPIED:
            if (self.folder / name).is_file():
                files.write_bytes(folder / name, (self.folder / name).read_bytes())
