"""`convert`: model source → checkpoint folder, a block of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast import files
from precast.checkpoint import FORMAT, ModelConfig, Quantization, tensor_shapes
from precast.errors import SourceError
from precast.progress import Progress, silent

if TYPE_CHECKING:
    from precast.quantize.families.family import Family
    from precast.quantize.weights import Weights

DEFAULT_ACTIVATION_GROUP = 32
"""Columns that share an int8 activation scale. Perplexity of SmolLM2's built engine on 10,220 tokens against fp32, head
included: rotated, groups of 32 +0.32 %, of 64 +0.40 %; not rotated, groups of 32 +0.54 %. Per token costs over 1 % even
when rotated. 32 against 64 costs about a sixteenth of the int8 multiply rate."""

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


def convert(
    source: Path,
    output_dir: Path,
    options: ConvertOptions | None = None,
    progress: Progress = silent,
    *,
    measure: Callable[[Path], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Writes a checkpoint folder, which appears whole by one rename or not at all; a checkpoint there is replaced.
    → its report.

    `measure` gets the folder when all but the report is there, and what it returns becomes part of that; what it raises
    fails the conversion.

    Everything that can be refused is refused before a tensor is read: unknown family or settings, missing, unread or
    misshapen tensors, a broken tokenizer, no room. Raises SourceError, and PrecastError for the output folder.
    """
    # Imported here: who only looks into the build cache, with ConvertOptions in hand, waits for none of it.
    from precast.quantize.account import account
    from precast.quantize.families import family_of
    from precast.quantize.report import report
    from precast.quantize.rows import RotatedRows, Rows
    from precast.quantize.sources import open_source
    from precast.quantize.weights import Weights
    from precast.safetensors_file import DTYPES

    chosen = options or ConvertOptions()
    files.refuse_foreign(output_dir, replaces=FORMAT)
    opened = open_source(source)
    family = family_of(opened.config, opened.where)
    plain = family.read(opened.config, _dtype(chosen.dtype, opened.dtype), opened.where)
    config = _target(plain, family, chosen)
    pieces = account(opened, family, plain)
    if plain.tie_word_embeddings and not config.tie_word_embeddings:
        pieces["lm_head.weight"] = pieces["transformer.vocab_embedding.weight"]
    rows = Rows(opened, pieces) if config.rotation is None else RotatedRows(opened, pieces, config)
    weights = Weights(rows, config)
    files.require_room(output_dir, sum(math.prod(s) * DTYPES[d].itemsize for d, s in weights.shapes.values()))
    with files.new_folder(output_dir, replaces=FORMAT) as folder:
        _write(folder / "rank0.safetensors", weights, progress)
        opened.write_side_files(folder)
        files.write_json(folder / "config.json", config.to_json())
        told = report(config, weights.powers) | ({} if measure is None else measure(folder))
        files.write_json(folder / "report.json", told)
    return told


def _write(path: Path, weights: Weights, progress: Progress) -> None:
    from precast.safetensors_file import SafetensorsWriter

    total = len(weights.shapes)
    writer = SafetensorsWriter(path, weights.shapes)
    try:
        for done, name in enumerate(weights.shapes):
            progress("convert", done, total)
            writer.add_blocks(name, weights.blocks(name))
        writer.close()
    except BaseException:
        writer.abort()
        raise
    progress("convert", total, total)


def _dtype(asked: str, stored: str) -> str:
    if asked not in ("auto", "float32", "bfloat16"):
        raise SourceError(f"dtype {asked!r} is not supported; auto, float32 and bfloat16 are")
    return asked if asked != "auto" else {"float32": "float32"}.get(stored, "bfloat16")


def _target(plain: ModelConfig, family: Family, options: ConvertOptions) -> ModelConfig:
    """The checkpoint's config: the plain one, quantized and rotated as asked."""
    if options.quant not in ("none", "int8"):
        raise SourceError(f"quant {options.quant!r} is not supported; none and int8 are")
    if options.rotate and not rotatable(plain):
        raise SourceError(f"family {family.model_type} cannot be rotated: its norms do not fold into linears")
    quantized = options.quant == "int8"
    if not quantized and (options.activation_group_size is not None or options.exclude):
        raise SourceError("activation groups and excluded modules need quantization; add --quant int8")
    group = DEFAULT_ACTIVATION_GROUP if options.activation_group_size is None else options.activation_group_size
    if quantized and group not in (0, 32, 64, 128):
        raise SourceError(f"activation group size {group} is not supported; 0 (per token), 32, 64 and 128 are")
    config = plain
    if options.rotate if options.rotate is not None else quantized and rotatable(plain):
        config = replace(
            config,
            rotation={"kind": "kronecker_hadamard", "seed": ROTATION_SEED},
            norm_gain_folded=True,
            tie_word_embeddings=False,  # the final norm's gain goes into the head alone
        )
    if quantized:
        config = replace(config, quantization=Quantization("W8A8_DYNAMIC", activation_group_size=group))
        _check_excluded(config, options.exclude)
        config = replace(config, quantization=replace(config.quantization, exclude_modules=options.exclude))
    return config


def rotatable(config: ModelConfig) -> bool:
    """Whether the residual stream can be rotated exactly: all that reads it does so through an RMS norm whose gain
    folds into the linears behind it, nothing stands between what writes it and the sum, and values pass linearly."""
    plain_norms = (config.norm_type, config.norm_placement, config.norm_gain_folded) == ("rms_norm", "pre", False)
    learned = config.position_embedding_type == "learned_absolute"
    return plain_norms and not (config.norm_bias or config.embedding_norm or learned or config.clip_qkv)


def _check_excluded(config: ModelConfig, patterns: tuple[str, ...]) -> None:
    """A pattern that excludes nothing is a mistake. `config` quantizes every module that can be."""
    modules = [name.rpartition(".")[0] for name, (dtype, _) in tensor_shapes(config).items() if dtype == "I8"]
    for pattern in patterns:
        if not any(fnmatchcase(module, pattern) for module in modules):
            head = "lm_head" if "lm_head" in modules else "transformer.vocab_embedding"
            raise SourceError(
                f"exclude {pattern!r} names no module; modules are named like {head} and transformer.layers.0.mlp.fc, "
                "and a pattern like *.mlp.fc names those of all layers"
            )
