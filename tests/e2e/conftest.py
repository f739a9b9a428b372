"""A tiny chat model in every form that the command line takes, and the command line as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command_line import precast
from tests.tiny import tiny_chat_model


@pytest.fixture(scope="session")
def hf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with tokenizer and chat template. Its engines take 8,192 tokens when asked."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    tiny_chat_model(folder, max_position_embeddings=8192)
    return folder


@pytest.fixture(scope="session")
def checkpoint(hf_folder: Path) -> Path:
    """The folder converted to int8."""
    folder = hf_folder.with_name("checkpoint")
    precast("convert", hf_folder, "--output-dir", folder, "--quant", "int8").done()
    return folder


@pytest.fixture(scope="session")
def engine(checkpoint: Path) -> Path:
    """The checkpoint built."""
    folder = checkpoint.with_name("engine")
    precast("build", checkpoint, "--output-dir", folder, "--max-batch-size", 4, "--max-seq-len", 8192).done()
    return folder
