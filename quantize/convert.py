"""`convert`: model source → checkpoint folder, one tensor at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precast import files
from precast.checkpoint import ModelConfig, Quantization, tensor_shapes
from precast.errors import SourceError
from precast.progress import Progress, silent
from precast.quantize.families import family_of
from precast.quantize.families.family import Family
from precast.quantize.sources import Source, open_source
from precast.quantize.weights import Weights
from precast.safetensors_file import SafetensorsWriter

DEFAULT_ACTIVATION_GROUP = 32
"""Columns that share an int8 activation scale. Per token costs SmolLM2 5.6 % perplexity, groups of 64 0.9 % and groups
of 32 0.6 % (rotated, head included); 32 against 64 costs about a tenth of the int8 multiply rate."""

ROTATION_SEED = 0


@dataclass(frozen=True)
class ConvertOptions:
    """`quant`: "none" or "int8". `dtype` of what is not quantized: "auto" (the source's; float16 becomes bfloat16),
    "float32" or "bfloat16". `activation_group_size` None: the algorithm's default; 0: per token. `rotate` None: where
    the family allows and something is quantized. `exclude`: checkpoint modules (shell patterns) left unquantized."""

    quant: str = "none"
    dtype: str = "auto"
    activation_group_size: int | None = None
    rotate: bool | None = None
    exclude: tuple[str, ...] = ()


def convert(source: Path, output_dir: Path, options: ConvertOptions | None = None, progress: Progress = silent) -> None:
    """Writes a checkpoint folder, which appears whole by one rename or not at all.

    Everything that can be refused is refused before a tensor is read: unknown family or settings, missing, unread or
    misshapen tensors. Raises SourceError.
    """
    opened = open_source(source)
    chosen = options or ConvertOptions()
    family = family_of(opened.config, opened.where)
    plain = family.read(opened.config, _dtype(chosen.dtype, opened.dtype))
    config = _target(plain, family, chosen)
    names = _account(opened, family, plain)
    with files.new_folder(output_dir) as folder:
        weights = Weights(opened, names, plain, config)
        shapes = tensor_shapes(config)
        writer = SafetensorsWriter(folder / "rank0.safetensors", shapes)
        try:
            for done, name in enumerate(shapes):
                progress("convert", done, len(shapes))
                writer.add(name, weights.tensor(name))
            writer.close()
        except BaseException:
            writer.abort()
            raise
        progress("convert", len(shapes), len(shapes))
        opened.write_side_files(folder)
        files.write_json(folder / "report.json", _report(config, weights))
        files.write_json(folder / "config.json", config.to_json())


def _dtype(asked: str, stored: str) -> str:
    if asked not in ("auto", "float32", "bfloat16"):
        raise SourceError(f"dtype {asked!r} is not supported; auto, float32 and bfloat16 are")
    return asked if asked != "auto" else {"float32": "float32"}.get(stored, "bfloat16")


def _target(plain: ModelConfig, family: Family, options: ConvertOptions) -> ModelConfig:
    """The checkpoint's config: the plain one, quantized and rotated as asked."""
    if options.quant not in ("none", "int8"):
        raise SourceError(f"quant {options.quant!r} is not supported; none and int8 are")
    if options.rotate and not family.rotatable:
        raise SourceError(f"family {family.model_type} cannot be rotated: its norms do not fold into linears")
    quantized = options.quant == "int8"
    if not quantized and (options.activation_group_size is not None or options.exclude):
        raise SourceError("activation groups and excluded modules need quantization; add --quant int8")
    group = DEFAULT_ACTIVATION_GROUP if options.activation_group_size is None else options.activation_group_size
    if quantized and group not in (0, 32, 64, 128):
        raise SourceError(f"activation group size {group} is not supported; 0 (per token), 32, 64 and 128 are")
    config = plain
    if quantized:
        quantization = Quantization("W8A8_DYNAMIC", activation_group_size=group, exclude_modules=options.exclude)
        config = replace(config, quantization=quantization)
    if options.rotate if options.rotate is not None else quantized and family.rotatable:
        config = replace(
            config,
            rotation={"kind": "kronecker_hadamard", "seed": ROTATION_SEED},
            norm_gain_folded=True,
            tie_word_embeddings=False,  # the final norm's gain goes into the head alone
        )
    return config


def _account(source: Source, family: Family, plain: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Checkpoint tensor → the source tensors whose rows it joins. Every source tensor is used, or named in an error."""
    found = source.shapes()
    names: dict[str, tuple[str, ...]] = {}
    for tensor, (_, shape) in tensor_shapes(plain).items():
        module, _, suffix = tensor.rpartition(".")
        parts = tuple(f"{part}.{suffix}" for part in _source_modules(module, family))
        for part in parts:
            if part not in found:
                raise SourceError(f"{source.where} lacks the tensor {part}")
        rows = sum(found[part][0] for part in parts)
        if any(found[part][1:] != shape[1:] for part in parts) or rows != shape[0]:
            shapes = ", ".join(f"{part} {list(found[part])}" for part in parts)
            raise SourceError(f"{source.where}: {shapes}; the config asks for {list(shape)}")
        names[tensor] = parts
    left = found.keys() - {part for parts in names.values() for part in parts}
    left = {name for name in left if not any(fnmatchcase(name, pattern) for pattern in family.ignored)}
    head, embedding = (f"{family.modules[m][0]}.weight" for m in ("lm_head", "transformer.vocab_embedding"))
    if plain.tie_word_embeddings and head in left:
        if found[head] != found[embedding] or (source.tensor(head) != source.tensor(embedding)).any():
            raise SourceError(f"{source.where}: tie_word_embeddings is true, yet {head} differs from {embedding}")
        left.remove(head)
    if left:
        raise SourceError(f"{source.where} has tensors that this model does not use: {', '.join(sorted(left)[:5])}")
    return names


def _source_modules(module: str, family: Family) -> tuple[str, ...]:
    if module in family.modules:
        return family.modules[module]
    _, _, layer, name = module.split(".", 3)
    return tuple(part.replace("{i}", layer) for part in family.layer_modules[name])


def _report(config: ModelConfig, weights: Weights) -> dict[str, Any]:
    """report.json: signal-to-quantization-noise ratio of each quantized weight, in dB, and the worst ones."""
    ratios = {module: _decibel(*powers) for module, powers in weights.powers.items()}
    worst = sorted(ratios, key=lambda module: ratios[module])[:5]
    return {
        "quant_algo": config.quantization.quant_algo,
        "activation_group_size": config.quantization.activation_group_size,
        "rotation": config.rotation,
        "weight_sqnr_db": {module: round(value, 2) for module, value in ratios.items()},
        "worst": worst,
    }


def _decibel(signal: float, noise: float) -> float:
    return 10 * math.log10(signal / noise) if signal and noise else 999.0
