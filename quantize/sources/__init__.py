"""Sources: what `convert` reads."""

from __future__ import annotations

from pathlib import Path

from precast.errors import SourceError
from precast.json_file import LFS_POINTER
from precast.quantize.sources.gguf_file import GgufSource
from precast.quantize.sources.hf_folder import HfFolder
from precast.quantize.sources.source import Source

__all__ = ["Source", "open_source"]


def open_source(path: Path) -> Source:
    """Opens a Hugging Face folder or a GGUF file; headers and names are checked, tensors are not read.

    Raises SourceError when it is neither, or damaged.
    """
    if path.is_dir():
        return HfFolder(path)
    if not path.exists():
        raise SourceError(f"{path} does not exist")
    if not path.is_file():  # a pipe may have no writer
        raise SourceError(f"{path} is neither a folder nor a regular file")
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    if head.startswith(b"GGUF"):
        return GgufSource(path)
    if head.startswith(LFS_POINTER):
        raise SourceError(f"{path} is a Git LFS pointer, not the model; run `git lfs pull` in its folder")
    if path.suffix in (".safetensors", ".engine", ".json"):
        raise SourceError(f"{path} is one file of a model; give the folder that holds it and its config.json")
    raise SourceError(f"{path} is neither a Hugging Face folder nor a GGUF file")
