"""What a conversion cost in quality: a fresh checkpoint beside its source, both as our own engines, without torch."""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precast import files
from precast.errors import PrecastError
from precast.evaluation.compare import compare
from precast.evaluation.engine_model import EngineModel
from precast.evaluation.engine_quality import check_of
from precast.evaluation.windows import Windows, tokens_before_text, windows_of
from precast.progress import Progress, silent
from precast.runtime.llm import LLM
from precast.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from precast.quantize import ConvertOptions

WINDOW, WINDOWS = 256, 16
"""Tokens of a window, and windows: 4,080 predicted tokens."""

SEED = 0

WARN_KL = 0.05
"""Nats per token. int8 gave 0.0075 on SmolLM2-135M-Instruct and 0.0103 on Gemma 3 270M."""


def convert_and_measure(
    source: Path,
    output_dir: Path,
    options: ConvertOptions,
    text: Path | None = None,
    max_kl: float | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """As `quantize.convert`, and the checkpoint's `report.json` gets `quality` → that (docs/checkpoint-format.md).

    The source is converted without quantization too, exactly, and both become engines with K/V in float32, in a
    temporary folder beside `output_dir`; KL(source ‖ checkpoint) is measured on `text`, or on what the source itself
    generates (seeded, temperature 1). Raises as `convert` does, and PrecastError when the mean KL exceeds `max_kl`: no
    checkpoint appears then.
    """
    from precast.quantize import convert

    if text is not None and not text.is_file():
        raise PrecastError(f"{text} is not a file; give a text file")  # before the time for a conversion is spent
    begin = time.monotonic()

    def measure(checkpoint: Path) -> dict[str, Any]:
        took = {"convert_seconds": time.monotonic() - begin, "convert_peak_memory_bytes": _peak_memory()}
        with files.work_folder(output_dir.resolve()) as work:
            quality = took | _quality(source, checkpoint, work, text, progress)
        quality["evaluate_seconds"] = time.monotonic() - begin - took["convert_seconds"]
        if max_kl is not None and not quality["kl_mean"] <= max_kl:
            raise PrecastError(
                f"the checkpoint lies {quality['kl_mean']:.3g} nats per token from {source} (mean KL), more than the "
                f"{max_kl:g} that are allowed, and was not written; allow more, or exclude modules from quantization"
            )
        return {"quality": quality}

    measured: dict[str, Any] = convert(source, output_dir, options, progress, measure=measure)["quality"]
    return measured


def _quality(source: Path, checkpoint: Path, work: Path, text: Path | None, progress: Progress) -> dict[str, Any]:
    progress("reference", 0, 3)
    reference, source_bytes = _reference(source, work)
    progress("reference", 1, 3)
    engine = _engine(checkpoint, work / "engine")
    progress("reference", 2, 3)
    a, b = EngineModel(reference, name=str(source)), EngineModel(engine, name=str(checkpoint))
    if text is None:
        windows = _generated(reference, a, _longest(checkpoint))
    else:
        windows = windows_of(text, a.tokenizer, _longest(checkpoint), WINDOWS)
    progress("reference", 3, 3)
    for model in (a, b):
        model.reserve(windows.longest)
    found = compare(a, b, windows, worst=0, progress=progress)
    kept = ("windows", "tokens", "kl_mean", "kl_median", "kl_p99", "kl_max", "top1_agreement")
    return {
        "text": None if text is None else text.name,
        "window": _longest(checkpoint),
        **{key: getattr(found, key) for key in kept},
        "nats_per_token_source": found.nats_per_token_a,
        "nats_per_token": found.nats_per_token_b,
        "perplexity_source": found.perplexity_a,
        "perplexity": found.perplexity_b,
        "source_weights_bytes": source_bytes,
        "weights_bytes": (checkpoint / "rank0.safetensors").stat().st_size,
        "check": check_of(b, windows.windows[0]),
    }


def _reference(source: Path, work: Path) -> tuple[Path, int]:
    """The engine of the source as it is (float16 becomes float32, which holds it exactly), and its weights' bytes."""
    from precast.quantize import ConvertOptions, convert
    from precast.quantize.sources import open_source

    dtype = "bfloat16" if open_source(source).dtype == "bfloat16" else "float32"
    convert(source, work / "source", ConvertOptions(dtype=dtype))
    size = (work / "source" / "rank0.safetensors").stat().st_size
    engine = _engine(work / "source", work / "reference")
    shutil.rmtree(work / "source")
    return engine, size


def _engine(checkpoint: Path, folder: Path) -> Path:
    from precast.builder import BuildOptions, build

    options = BuildOptions(
        max_batch_size=WINDOWS,
        max_num_tokens=512,
        max_seq_len=_longest(checkpoint),
        kv_cache_dtype="float32",
        optimization_level=0,
    )
    build(checkpoint, folder, options)
    return folder


def _longest(checkpoint: Path) -> int:
    """Tokens of a window: what the model has positions for, at most WINDOW."""
    from precast.builder.weights import Checkpoint

    return min(WINDOW, Checkpoint(checkpoint).config.max_position_embeddings)


def _generated(engine: Path, model: EngineModel, length: int) -> Windows:
    """Windows of what a model says when nobody has asked: from the token that begins a text (else from one that ends
    texts, else from a random one), at temperature 1, whatever end tokens it writes."""
    tokenizer = model.tokenizer
    begin = tokens_before_text(tokenizer) or [t for t in (tokenizer.bos_token_id, tokenizer.eos_token_id) if t][:1]
    random = np.random.default_rng(SEED).integers(0, model.vocab_size, WINDOWS)
    prompts = [begin or [int(token)] for token in random]
    params = [
        SamplingParams(temperature=1.0, max_tokens=length - len(prompts[0]), seed=SEED + i, ignore_eos=True)
        for i in range(WINDOWS)
    ]
    with LLM(engine, generation_config=False) as llm:
        outputs = llm.generate(prompts, params)
    if wrong := next((output.error for output in outputs if output.error is not None), None):
        raise PrecastError(f"{model.name} cannot generate the text that its checkpoint is measured on: {wrong}")
    return Windows([[*p, *output.token_ids] for p, output in zip(prompts, outputs, strict=True)], begin)


def _peak_memory() -> int:
    """Most bytes that this process has had resident, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
