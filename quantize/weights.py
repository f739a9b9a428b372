"""A checkpoint's tensors made from a source's: joined, folded, rotated, quantized or cast, in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precast.checkpoint import ModelConfig, is_quantized
from precast.errors import SourceError
from precast.quantize.int8 import quantize_weight, signal_and_noise
from precast.quantize.rotation import Rotation
from precast.quantize.sources import Source

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

BLOCK_ELEMENTS = 1 << 24
"""Elements worked on at once, 64 MiB as f32: memory stays bounded however large a tensor is."""


class Weights:
    """Makes checkpoint tensors by name. `names` maps the plain checkpoint's tensors to the source's."""

    def __init__(
        self, source: Source, names: dict[str, tuple[str, ...]], plain: ModelConfig, config: ModelConfig
    ) -> None:
        self.source = source
        self.names = names
        self.plain = plain
        self.config = config
        self.powers: dict[str, tuple[float, float]] = {}
        self.dtype = np.dtype(np.float32 if config.dtype == "float32" else ml_dtypes.bfloat16)
        self._scales: dict[str, F32] = {}
        self.hidden: Rotation | None = None
        if config.rotation is not None:
            seed = config.rotation["seed"]
            self.hidden = Rotation(config.hidden_size, seed)
            self.values = Rotation(config.head_size, seed, signs=False)

    def tensor(self, name: str) -> Array:
        """The tensor `name` of the checkpoint; a quantized weight comes before its scale.

        Raises SourceError when the source holds NaN or infinity.
        """
        module, _, suffix = name.rpartition(".")
        if suffix == "per_channel_scale":
            return self._scales.pop(module)
        if suffix == "bias":
            return self._bias(module).astype(self.dtype)
        if name not in self.names and name != "lm_head.weight":
            raise SourceError(f"{self.source.where} has nothing for {name}")
        if is_quantized(self.config, module) and len(self._shape(name)) == 2 and self._is_linear(module):
            return self._quantized(module, name)
        parts = [block.astype(self.dtype) for block in self._blocks(module, name)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _is_linear(self, module: str) -> bool:
        return module != "transformer.vocab_embedding" or self.config.tie_word_embeddings

    def _quantized(self, module: str, name: str) -> Array:
        q = np.empty(self._shape(name), np.int8)
        scale = np.empty(len(q), np.float32)
        signal = noise = 0.0
        begin = 0
        for block in self._blocks(module, name):
            end = begin + len(block)
            try:
                q[begin:end], scale[begin:end] = quantize_weight(block)
            except ValueError as error:
                raise SourceError(f"{self.source.where}: {name}: {error}") from None
            powers = signal_and_noise(block, q[begin:end], scale[begin:end])
            signal, noise, begin = signal + powers[0], noise + powers[1], end
        self._scales[module] = scale
        self.powers[module] = (signal, noise)
        return q

    def _parts(self, name: str) -> tuple[str, ...]:
        # An untied head that the plain checkpoint does not have: its rows are the embedding's.
        return self.names.get(name) or self.names["transformer.vocab_embedding.weight"]

    def _shape(self, name: str) -> tuple[int, ...]:
        shapes = self.source.shapes()
        parts = self._parts(name)
        return (sum(shapes[part][0] for part in parts), *shapes[parts[0]][1:])

    def _blocks(self, module: str, name: str) -> Iterator[F32]:
        """The transformed weight in blocks of rows, f32."""
        transform, whole = self._transform(module)
        if whole:
            yield transform(np.concatenate([np.asarray(self.source.tensor(p), np.float32) for p in self._parts(name)]))
            return
        for part in self._parts(name):
            tensor = self.source.tensor(part)
            columns = tensor.shape[1] if tensor.ndim == 2 else 1
            step = max(1, BLOCK_ELEMENTS // columns)
            for begin in range(0, len(tensor), step):
                yield transform(np.asarray(tensor[begin : begin + step], np.float32))

    def _transform(self, module: str) -> tuple[Callable[[F32], F32], bool]:
        """What happens to a weight's rows, and whether it needs all rows at once."""
        if self.hidden is None:
            return (lambda block: block), False
        hidden, kind = self.hidden, module.split(".", 3)[-1] if ".layers." in module else module
        match kind:
            case "transformer.vocab_embedding":
                return hidden.apply, False
            case "attention.qkv":
                return self._rotate_qkv(module), True
            case "attention.dense":
                return self._rotate_dense, True
            case "mlp.proj":
                return hidden.apply_rows, True
        gain = self._gain(module)
        return (lambda block: hidden.apply(block * gain)), False

    def _gain(self, module: str) -> F32:
        """The gain of the norm that feeds a linear."""
        if module == "lm_head":
            norm = "transformer.ln_f"
        else:
            _, _, layer, kind = module.split(".", 3)
            norm = "input_layernorm" if kind == "attention.qkv" else "post_layernorm"
            norm = f"transformer.layers.{layer}.{norm}"
        return np.asarray(self.source.tensor(self.names[norm + ".weight"][0]), np.float32)

    def _rotate_qkv(self, module: str) -> Callable[[F32], F32]:
        c, gain = self.config, self._gain(module)

        def rotate(weight: F32) -> F32:
            assert self.hidden is not None
            weight = self.hidden.apply(weight * gain)
            values = weight[-c.num_key_value_heads * c.head_size :]
            heads = values.reshape(c.num_key_value_heads, c.head_size, -1)
            values[:] = np.concatenate([self.values.apply_rows(head) for head in heads])
            return weight

        return rotate

    def _rotate_dense(self, weight: F32) -> F32:
        assert self.hidden is not None
        c = self.config
        heads = weight.reshape(len(weight), c.num_attention_heads, c.head_size)
        return self.hidden.apply_rows(self.values.apply(heads).reshape(weight.shape))

    def _bias(self, module: str) -> F32:
        parts = self.names[module + ".bias"]
        bias = np.concatenate([np.asarray(self.source.tensor(part), np.float32) for part in parts])
        if self.hidden is None:
            return bias
        c, kind = self.config, module.split(".", 3)[-1]
        if kind in ("attention.dense", "mlp.proj"):
            return self.hidden.apply(bias)
        if kind == "attention.qkv":
            values = bias[-c.num_key_value_heads * c.head_size :]
            values[:] = self.values.apply(values.reshape(-1, c.head_size)).reshape(-1)
        return bias
