"""A GGUF file as a source: its fields as a Hugging Face config, its tensors under Hugging Face names. No torch."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from precast import files
from precast.errors import SourceError
from precast.quantize.families import FAMILIES
from precast.quantize.families.family import Family, Part
from precast.quantize.sources.gguf_reader import GgufFile
from precast.quantize.sources.gguf_tokenizer import tokenizer_files
from precast.quantize.sources.source import Source

# `{architecture}.…` fields that are understood below; any other could change the maths and is refused.
KNOWN = frozenset(
    (
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "vocab_size",
    )
)

GGUF_FAMILIES = {family.gguf.name: family for family in FAMILIES.values() if family.gguf is not None}

ROPE_FREQS = "rope_freqs.weight"
ROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")

# Llama 3.1 and 3.2: (factor, low_freq_factor, high_freq_factor, original_max_position_embeddings).
LLAMA3_ROPES = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))


class GgufSource(Source):
    """Un-permuted and dequantized to f32 as it is read. The tokenizer is rebuilt from the fields when it is opened."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        """Raises SourceError for a damaged file and for an architecture or settings that are not supported."""
        self.where = str(path)
        self._file = GgufFile(path)
        fields = self._file.fields
        if (parts := fields.get("split.count", 1)) not in (0, 1):
            raise SourceError(f"{path} is one of {parts} parts; join them with llama.cpp's llama-gguf-split --merge")
        architecture = fields.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in GGUF_FAMILIES:
            told = ", ".join(GGUF_FAMILIES)
            raise SourceError(f"{path}: GGUF architecture {architecture!r} is not supported; {told} are")
        self.family = GGUF_FAMILIES[architecture]
        assert self.family.gguf is not None
        self._gguf = self.family.gguf
        self._names = {self._name(name): name for name in self._file.tensors if name not in (ROPE_FREQS, *ROPE_FACTORS)}
        self._plus = {stem: added_to(self.family, module) for stem, module in self._gguf.tensors.items()}
        self.dtype = self._main_dtype()
        self.config = self._config(architecture)
        self._side_files = tokenizer_files(fields, self.config, self.where)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self._file.tensors[gguf_name].shape for name, gguf_name in self._names.items()}

    def stored_as(self) -> dict[str, str]:
        return {name: self._file.tensors[gguf_name].kind.name for name, gguf_name in self._names.items()}

    def rows(self, name: str, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        gguf_name = self._names[name]
        if _stem(gguf_name).rpartition(".")[2] in self._gguf.permuted:
            listed = np.arange(self.shapes()[name][0])[rows]
            rows = permuted_rows(listed, self.config["head_dim"])
        read = self._file.rows(gguf_name, rows)
        # GGUF keeps whole gains, where Hugging Face keeps what is added to them.
        return read - np.float32(plus) if (plus := self._plus.get(_stem(gguf_name), 0)) else read

    def write_side_files(self, folder: Path) -> None:
        for name, content in self._side_files.items():
            data = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            files.write_bytes(folder / name, data.encode())

    def _name(self, gguf_name: str) -> str:
        key = _stem(gguf_name)
        if key not in self._gguf.tensors:
            return gguf_name  # unknown: stays under its own name, and convert refuses it by that name
        layer = gguf_name.split(".")[1] if "{i}" in key else ""
        return self._gguf.tensors[key].replace("{i}", layer) + "." + gguf_name.rpartition(".")[2]

    def _main_dtype(self) -> str:
        sizes: Counter[GGMLQuantizationType] = Counter()
        for info in self._file.tensors.values():
            sizes[info.kind] += info.size
        if not sizes:
            raise SourceError(f"{self.where} holds no tensors")
        main = sizes.most_common(1)[0][0]
        return {GGMLQuantizationType.F32: "float32", GGMLQuantizationType.F16: "float16"}.get(main, "bfloat16")

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self._file.fields.get(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise SourceError(f"{self.where}: the field {key} must be a positive integer, not {value!r}")
        return value

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._file.fields.get(key, default)
        if not isinstance(value, float) or not 0 < value < 1e30:
            raise SourceError(f"{self.where}: the field {key} must be a positive number, not {value!r}")
        return value

    def _config(self, arch: str) -> dict[str, Any]:
        fields = self._file.fields
        known = KNOWN | set(self._gguf.keys.values())
        if ROPE_FACTORS[0] in self._file.tensors:
            known |= {"rope.scaling.attn_factor"}
        unknown = sorted(key for key in fields if key.startswith(f"{arch}.") and key[len(arch) + 1 :] not in known)
        if unknown:
            raise SourceError(f"{self.where} has fields that could change the model: {', '.join(unknown[:5])}")
        hidden, heads = self._integer(f"{arch}.embedding_length"), self._integer(f"{arch}.attention.head_count")
        head_size = self._integer(f"{arch}.attention.key_length", max(1, hidden // heads))
        if self._integer(f"{arch}.attention.value_length", head_size) != head_size:
            raise SourceError(f"{self.where}: values of another size than the keys' {head_size} are not supported")
        tokens = fields.get("tokenizer.ggml.tokens")
        config = {
            "model_type": self.family.model_type,
            "architectures": [self.family.architecture],
            "dtype": self.dtype,
            "vocab_size": len(tokens) if isinstance(tokens, list) else self._integer(f"{arch}.vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": self._integer(f"{arch}.feed_forward_length"),
            "num_hidden_layers": self._integer(f"{arch}.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._integer(f"{arch}.attention.head_count_kv", heads),
            "head_dim": head_size,
            "max_position_embeddings": self._integer(f"{arch}.context_length"),
            # GGUF stores f32: 9.9999997e-06 was written as 1e-05.
            "rms_norm_eps": float(f"{self._number(f'{arch}.attention.layer_norm_rms_epsilon'):.4g}"),
            "rope_parameters": self._rope(arch, head_size),
            "tie_word_embeddings": "lm_head.weight" not in self._names,
        }
        if self.family.settings.get("qkv_bias") is not True and self._has_bias("q_proj"):
            config["attention_bias"] = True
        if self._has_bias("up_proj"):
            config["mlp_bias"] = True
        for key, field in self._gguf.keys.items():
            if value := fields.get(f"{arch}.{field}"):  # 0: there is none
                config[key] = value
        if self._gguf.more is not None:
            config |= self._gguf.more(config)
        for key in ("bos", "eos"):
            if (token := fields.get(f"tokenizer.ggml.{key}_token_id")) is not None:
                config[f"{key}_token_id"] = token
        return config

    def _has_bias(self, module: str) -> bool:
        return any(name.endswith(module + ".bias") for name in self._names)

    def _rope(self, arch: str, head_size: int) -> dict[str, Any]:
        """`rope_parameters` as transformers 5 has them."""
        theta = self._number(f"{arch}.rope.freq_base", 10000.0)
        dim = self._integer(f"{arch}.rope.dimension_count", head_size)
        if dim > head_size or (dim < head_size and self._gguf.permuted):
            raise SourceError(f"{self.where}: rope over {dim} of {head_size} dimensions is not supported here")
        rope = {"rope_theta": theta} | ({"partial_rotary_factor": dim / head_size} if dim < head_size else {})
        kind = self._file.fields.get(f"{arch}.rope.scaling.type", "none")
        if any(name in self._file.tensors for name in ROPE_FACTORS) and kind in ("none", "longrope"):
            return rope | self._longrope(arch, dim)
        if kind != "none":
            raise SourceError(f"{self.where}: GGUF files with rope scaling {kind!r} are not supported")
        rope |= self._llama3(theta, head_size)
        by_layer = self.family.rope is not None and self.family.rope.local_base is not None
        return {"full_attention": rope} if by_layer else rope

    def _longrope(self, arch: str, dim: int) -> dict[str, Any]:
        """Phi-3: the factors are tensors."""
        for name in ROPE_FACTORS:  # of this size, before they are read
            if name not in self._file.tensors or self._file.tensors[name].shape != (dim // 2,):
                raise SourceError(f"{self.where}: {name} must hold {dim // 2} numbers")
        # The shortest decimals that are these f32.
        short, long = ([float(str(f)) for f in self._file.rows(name, slice(None))] for name in ROPE_FACTORS)
        original = self._integer(f"{arch}.rope.scaling.original_context_length")
        scale = self._integer(f"{arch}.context_length") / original
        usual = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 < original else 1.0
        stored = self._number(f"{arch}.rope.scaling.attn_factor", usual)
        told = {} if math.isclose(stored, usual, rel_tol=1e-6) else {"attention_factor": stored}
        return {"rope_type": "longrope", "short_factor": short, "long_factor": long, **told}

    def _llama3(self, theta: float, head_size: int) -> dict[str, Any]:
        """Llama 3's scaling is stored as divisors of the frequencies: they must be those of a known setting."""
        if ROPE_FREQS not in self._file.tensors:
            return {"rope_type": "default"}
        divisors = self._file.rows(ROPE_FREQS, slice(None))
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        for setting in LLAMA3_ROPES:
            expected = llama3_divisors(theta, head_size, *setting)
            if divisors.shape == expected.shape and np.allclose(divisors, expected, rtol=1e-3):
                return {"rope_type": "llama3", **dict(zip(names, setting, strict=True))}
        raise SourceError(f"{self.where}: its rope frequencies ({ROPE_FREQS}) are not those of Llama 3.1 or 3.2")


def _stem(gguf_name: str) -> str:
    """A tensor's name as descriptions have it: `blk.3.attn_q.weight` → `blk.{i}.attn_q`."""
    stem = gguf_name.rpartition(".")[0]
    match = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
    return f"blk.{{i}}.{match[2]}" if match else stem


def added_to(family: Family, module: str) -> float:
    """What the family adds to the weight of a source module."""
    parts = (*family.modules.values(), *family.layer_modules.values())
    return next((part.plus for part in parts if isinstance(part, Part) and part.module == module), 0.0)


def permuted_rows(rows: npt.NDArray[np.int64], head_size: int) -> npt.NDArray[np.int64]:
    """Where GGUF's Llama keeps the rows of q and k: it interleaves the halves of each head, for its rope."""
    head, i = np.divmod(rows, head_size)
    half, place = np.divmod(i, head_size // 2)
    return np.asarray(head * head_size + 2 * place + half)


def llama3_divisors(
    theta: float, head_size: int, factor: float, low: float, high: float, original: int
) -> npt.NDArray[np.float64]:
    """By what Llama 3.1 divides each inverse frequency: 1 for short wavelengths, `factor` for long, between smooth."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_size, 2) / head_size)
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
