"""A Hugging Face folder: config.json and safetensors, single or sharded."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precast import checkpoint, files
from precast.errors import SourceError
from precast.json_file import read_config_object
from precast.quantize.families import family_of
from precast.quantize.sources.hf_tokenizer import made_tokenizer
from precast.quantize.sources.recognise import INDEX, SINGLE, listed, quantizer_of, why_not, why_not_config
from precast.quantize.sources.source import Source
from precast.runtime.text.chat_template import ChatTemplate
from precast.runtime.text.tokenizer import Tokenizer, read_json
from precast.safetensors_file import SafetensorsFile

ENGINE_FORMAT = "precast-engine"
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class HfFolder(Source):
    """Opened: every header read, every index entry found, tokenizer and template loaded, no tensor touched."""

    kind = "huggingface"

    def __init__(self, folder: Path) -> None:
        """Raises SourceError for what cannot be converted, in one sentence."""
        self.folder = folder
        self.where = str(folder)
        self.config = read_hf_config(folder, self.where)
        if reason := why_not(self.where, listed(folder)):
            if isinstance(self.config.get("model_type"), str):
                family_of(self.config, self.where)  # of a family that is not here, no other weights would do
            raise SourceError(reason)
        self._home = _open_shards(folder)
        self._check_unquantized()
        self.dtype = self._main_dtype()
        _check_side_files(folder)
        self._made = made_tokenizer(folder)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shard.tensors[name].shape for name, shard in self._home.items()}

    def stored_as(self) -> dict[str, str]:
        return {name: shard.tensors[name].dtype for name, shard in self._home.items()}

    def rows(self, name: str, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        file = self._home[name]
        read = np.array(file.tensor(name)[rows], np.float32)
        file.release(name)
        return read

    def write_side_files(self, folder: Path) -> None:
        files.copy(self.folder, folder, (name for name in checkpoint.side_files(self.folder) if name not in self._made))
        for name, content in self._made.items():
            files.write_json(folder / name, content)

    def _check_unquantized(self) -> None:
        """Quantizers may leave their tensors and say nothing in config.json."""
        if found := quantizer_of(self._home):
            quantizer, name = found
            raise SourceError(
                f"{self._home[name].path}: tensor {name} is of a model that is already quantized ({quantizer}); "
                "precast converts unquantized models so far: give the model that it was made of"
            )

    def _main_dtype(self) -> str:
        sizes: Counter[str] = Counter()
        for name, shard in self._home.items():
            info = shard.tensors[name]
            if info.dtype not in _DTYPES:
                raise SourceError(
                    f"{shard.path}: tensor {name} is {info.dtype}; precast converts models whose weights are float32, "
                    "bfloat16 or float16"
                )
            sizes[_DTYPES[info.dtype]] += math.prod(info.shape)
        return sizes.most_common(1)[0][0]


def read_hf_config(folder: Path, where: str) -> dict[str, Any]:
    """config.json of a Hugging Face folder. Raises SourceError when there is none, and for one of something else."""
    if not (folder / "config.json").is_file():
        raise SourceError(why_not(where, listed(folder) - {"config.json"}))
    config = read_config_object(folder / "config.json", SourceError)
    if config.get("format") == checkpoint.FORMAT:
        raise SourceError(
            f"{folder} is a precast checkpoint already; build it with: precast build {folder} --output-dir ENGINE"
        )
    if config.get("format") == ENGINE_FORMAT:
        raise SourceError(f"{folder} is a precast engine already; run it with: precast run {folder} PROMPT")
    if reason := why_not_config(where, config):
        raise SourceError(reason)
    return config


def _open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor → the opened file that holds it. Every tensor of every file is in the index and the other way round."""
    if (folder / SINGLE).exists():
        file = SafetensorsFile.open(folder / SINGLE)
        if not file.tensors:
            raise SourceError(f"{file.path} holds no tensors")
        return dict.fromkeys(file.tensors, file)
    shards = index_shards(folder)
    for name in shards:
        if not (folder / name).is_file():
            raise SourceError(f"{folder} lacks {name}, which the index names; the download is not complete")
    home: dict[str, SafetensorsFile] = {}
    for name, tensors in sorted(shards.items()):
        file = SafetensorsFile.open(folder / name)
        if missing := sorted(tensors - file.tensors.keys()):
            raise SourceError(f"{folder / name} lacks the tensor {missing[0]}, which the index puts there")
        if stray := sorted(file.tensors.keys() - tensors):
            raise SourceError(f"{folder / name} has the tensor {stray[0]}, which the index does not put there")
        home |= dict.fromkeys(file.tensors, file)
    return home


def index_shards(folder: Path) -> dict[str, set[str]]:
    """The files that a folder's index names → the tensors in each. Raises SourceError for an index that cannot be."""
    found = read_json(folder / INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise SourceError(f"{folder / INDEX} has no usable weight_map")
    shards: dict[str, set[str]] = {}
    for tensor, name in found.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise SourceError(f"{folder}: the index sends {tensor} to {name!r}, not a safetensors file of this folder")
        shards.setdefault(name, set()).add(tensor)
    return shards


def _check_side_files(folder: Path) -> None:
    """Loads what will be copied: a model without any tokenizer is fine, a broken or unusable one is not."""
    if (folder / "tokenizer.json").is_file():
        Tokenizer.from_folder(folder)
    if (template := ChatTemplate.from_folder(folder)) is not None:
        template.check()
    read_json(folder / "generation_config.json")
