"""What every source offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Source(ABC):
    """A model: its Hugging Face config, and its tensors under their Hugging Face names.

    Opening one checks all that can be checked without reading tensors; files from outside are not trusted.
    """

    kind: str
    where: str
    """Its path, for messages."""
    config: dict[str, Any]
    dtype: str
    """float32, bfloat16 or float16: what most of the weights' bytes are stored in (GGUF: what they are worth)."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every tensor."""

    @abstractmethod
    def stored_as(self) -> dict[str, str]:
        """Name → what every tensor is stored in, as the file calls it: BF16, F32, Q8_0, …"""

    @abstractmethod
    def rows(self, name: str, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Rows of a tensor (of a vector: elements) as f32, to be kept and changed by the caller.

        Raises SourceError when they cannot be decoded.
        """

    @abstractmethod
    def write_side_files(self, folder: Path) -> None:
        """Writes tokenizer, chat template and generation config into a checkpoint folder."""
