"""Sources are read once: what was read of their mappings no longer counts as the process's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from precast.quantize.sources import Source, open_source
from tests.gguf_models import write_llama
from tests.tiny import tiny_llama


def resident(path: Path) -> int:
    """Bytes of the mappings of a file that lie in this process's memory."""
    size, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0] and not line.split(" ", 1)[0].endswith(":"):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            size += int(line.split()[1]) * 1024
    return size


def read_all(source: Source) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {name: source.rows(name, slice(None)) for name in source.shapes()}


@pytest.mark.parametrize("kind", ["huggingface", "gguf"])
def test_tensors_that_were_read_are_let_go_and_can_be_read_again(kind: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", vocab_size=40_000, hidden_size=128, head_dim=32)
    write_llama(tmp_path / "m.gguf", model, GGMLQuantizationType.F32)
    path, file = tmp_path / "hf", tmp_path / "hf" / "model.safetensors"
    if kind == "gguf":
        path = file = tmp_path / "m.gguf"
    source = open_source(path)
    first = read_all(source)
    assert file.stat().st_size > 32 << 20
    assert resident(file) < 4 << 20
    np.testing.assert_array_equal(
        source.rows("lm_head.weight", slice(None))[::-1][:5], first["lm_head.weight"][-5:][::-1]
    )
