"""A checkpoint's tensors, read one at a time, every one accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precast.checkpoint import ModelConfig, is_quantized, read_config, tensor_shapes
from precast.errors import CheckpointError
from precast.safetensors_file import SafetensorsFile

Array = npt.NDArray[Any]


class Checkpoint:
    """A checkpoint folder whose names, dtypes and shapes were checked against its config."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError when the folder is not a checkpoint, or a tensor is missing, unexpected or of
        another dtype or shape; the message names it."""
        self.folder = folder
        self.config: ModelConfig = read_config(folder)
        path = folder / "rank0.safetensors"
        if not path.exists():
            raise CheckpointError(f"{folder} has no rank0.safetensors; convert the model again")
        self._file = SafetensorsFile.open(path)
        if (layers := self.config.num_hidden_layers) > len(self._file.tensors):
            raise CheckpointError(f"{path} has {len(self._file.tensors)} tensors for {layers} layers")
        expected = tensor_shapes(self.config)
        found = {name: (t.dtype, tuple(t.shape)) for name, t in self._file.tensors.items()}
        for name in sorted(expected.keys() - found.keys()):
            raise CheckpointError(f"{path} lacks the tensor {name}")
        for name in sorted(found.keys() - expected.keys()):
            raise CheckpointError(f"{path} has a tensor that this model does not use: {name}")
        for name, what in expected.items():
            if found[name] != what:
                raise CheckpointError(f"{path}: {name} is {found[name]}, the config asks for {what}")

    def tensor(self, name: str) -> Array:
        """The mapped tensor: float32, bfloat16 (ml_dtypes) or int8."""
        return self._file.tensor(name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """A norm gain, bias or scale as f32."""
        return np.asarray(self.tensor(name), np.float32)

    def linear_dtype(self, module: str) -> np.dtype[Any]:
        """dtype of a linear's weight: int8, bfloat16 or float32."""
        if is_quantized(self.config, module):
            return np.dtype(np.int8)
        return np.dtype(np.float32 if self.config.dtype == "float32" else ml_dtypes.bfloat16)
