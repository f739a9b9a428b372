"""A GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), read with the `gguf` package: no torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from precast import files
from precast.errors import SourceError
from precast.quantize.families import FAMILIES
from precast.quantize.sources.gguf_tokenizer import tokenizer_files
from precast.quantize.sources.source import Array, Source


class GgufSource(Source):
    """The file's tensors under their Hugging Face names, un-permuted and dequantized to f32 one by one."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self.path = path
        try:
            self._reader = GGUFReader(path)
            self.fields = {name: field.contents() for name, field in self._reader.fields.items()}
        except Exception as error:  # the library raises whatever a damaged file makes it raise
            raise SourceError(f"{path} is not a whole GGUF file: {error}") from None
        architecture = self.fields.get("general.architecture")
        if architecture not in FAMILIES:
            raise SourceError(f"{path}: GGUF architecture {architecture!r} is not supported; {', '.join(FAMILIES)} is")
        self.family = FAMILIES[str(architecture)]
        self.dtype = "bfloat16"
        self._tensors = {self._name(t.name): t for t in self._reader.tensors}
        self.config = self._config(str(architecture))

    def _field(self, key: str, default: Any = None) -> Any:
        value = self.fields.get(key, default)
        if value is None:
            raise SourceError(f"{self.path} lacks the field {key}")
        return value

    def _config(self, arch: str) -> dict[str, Any]:
        hidden, heads = self._field(f"{arch}.embedding_length"), self._field(f"{arch}.attention.head_count")
        if self.fields.get(f"{arch}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in self._tensors:
            raise SourceError(f"{self.path}: GGUF files with rope scaling are not supported so far")
        tokens = self._field("tokenizer.ggml.tokens")
        config = {
            "model_type": self.family.model_type,
            "architectures": [self.family.architecture],
            "dtype": self.dtype,
            "vocab_size": len(tokens),
            "hidden_size": hidden,
            "intermediate_size": self._field(f"{arch}.feed_forward_length"),
            "num_hidden_layers": self._field(f"{arch}.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.fields.get(f"{arch}.attention.head_count_kv", heads),
            "head_dim": self.fields.get(f"{arch}.attention.key_length", hidden // heads),
            "hidden_act": "silu",
            "max_position_embeddings": self._field(f"{arch}.context_length"),
            # GGUF stores f32: 9.9999997e-06 was written as 1e-05.
            "rms_norm_eps": float(f"{self._field(f'{arch}.attention.layer_norm_rms_epsilon'):.4g}"),
            "rope_theta": float(self.fields.get(f"{arch}.rope.freq_base", 10000.0)),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
        }
        for key in ("bos", "eos"):
            if (token := self.fields.get(f"tokenizer.ggml.{key}_token_id")) is not None:
                config[f"{key}_token_id"] = token
        return config

    def _name(self, gguf_name: str) -> str:
        stem, _, suffix = gguf_name.rpartition(".")
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
        key = f"blk.{{i}}.{match[2]}" if match else stem
        if key not in self.family.gguf:
            return gguf_name  # unknown: stays under its own name, and convert refuses it by that name
        return self.family.gguf[key].replace("{i}", match[1] if match else "") + "." + suffix

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def tensor(self, name: str) -> Array:
        tensor = self._tensors[name]
        try:
            array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        except Exception as error:  # the library raises whatever a damaged block makes it raise
            raise SourceError(f"{self.path}: tensor {tensor.name} cannot be dequantized: {error}") from None
        array = array.reshape(self.shapes()[name])
        if tensor.name.split(".")[-2] in self.family.gguf_permuted:
            array = _unpermute(array, self.config["head_dim"])
        return array

    def write_side_files(self, folder: Path) -> None:
        for name, content in tokenizer_files(self.fields, self.config, self.where).items():
            data = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            files.write_bytes(folder / name, data.encode())


def _unpermute(weight: Array, head_size: int) -> Array:
    """Rows of each head from interleaved pairs (GGUF's Llama) to halves (Hugging Face's)."""
    rest = weight.shape[1:]
    return weight.reshape(-1, head_size // 2, 2, *rest).swapaxes(1, 2).reshape(weight.shape)
