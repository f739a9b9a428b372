"""What every source offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Source(ABC):
    """A model: its Hugging Face config, and its tensors under their Hugging Face names."""

    kind: str
    where: str
    config: dict[str, Any]
    dtype: str
    """float32, bfloat16 or float16: what most weights are stored in."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every tensor."""

    @abstractmethod
    def tensor(self, name: str) -> Array:
        """A tensor in its stored dtype (GGUF: f32)."""

    @abstractmethod
    def write_side_files(self, folder: Path) -> None:
        """Writes tokenizer, chat template and generation config into a checkpoint folder."""

    def rows(self, name: str, begin: int, end: int) -> npt.NDArray[np.float32]:
        """Rows [begin, end) of a tensor as f32."""
        return np.asarray(self.tensor(name)[begin:end], np.float32)
