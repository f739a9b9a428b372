"""resolve → convert → build → finish: the only code that knows all the folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from precast._native import kernels
from precast.checkpoint import FORMAT as CHECKPOINT_FORMAT
from precast.errors import EngineError, PrecastError, SourceError
from precast.json_file import find_config_object
from precast.progress import Progress, silent
from precast.runtime import llm
from precast.runtime.memory import available_memory
from precast.runtime.options import RuntimeOptions
from precast.runtime.session import FORMAT as ENGINE_FORMAT

if TYPE_CHECKING:
    from precast.builder import BuildOptions
    from precast.prefixes import Prefix
    from precast.quantize import ConvertOptions

DEMO = "demo"

SMALL_ENGINE_BYTES = 64 << 20
"""Engines up to this size are compared with the reference, which takes seconds for them and minutes for larger ones."""

REFERENCE_TOKENS = 40
"""Longer than a KV page."""

EXACT_TOLERANCE = 1e-3
ROUNDED_TOLERANCE = 0.2
"""Of the root mean square error over the logits' standard deviation. Rounding (bfloat16, int8 activations) that falls
the other way gives about 0.03; a wrong layout gives more than 1."""


def kind_of(path: Path) -> str:
    """ "engine", "checkpoint" or "source", by the `format` key of the folder's config.json."""
    named = find_config_object(path / "config.json").get("format")
    return {ENGINE_FORMAT: "engine", CHECKPOINT_FORMAT: "checkpoint"}.get(str(named), "source")


def resolve(model: str | Path, progress: Progress = silent, revision: str | None = None) -> Path:
    """The folder or file that MODEL names; `demo` and hub ids are fetched. What is here goes before what a hub has.

    `revision`: the branch, tag or commit of a hub id. Raises SourceError when there is no such model.
    """
    path = Path(os.path.expanduser(model))  # Path.expanduser raises where there is no such user
    if model == DEMO or path.exists():
        if revision is not None:
            raise SourceError(f"{model} is no hub id, and only those have revisions; leave the revision {revision} out")
        return _demo(progress) if model == DEMO else path
    from precast.quantize.sources import hub

    if hub.HUB_ID.match(str(model)) and not path.parent.exists():
        return hub.fetch(str(model), revision)
    raise SourceError(f"{model} does not exist; {_instead(path, bool(hub.HUB_ID.match(str(model))))}")


def _demo(progress: Progress) -> Path:
    from precast.builder import build_cache
    from precast.quantize.demo import fetch_demo

    return fetch_demo(build_cache.cache_dir(), progress)


def _instead(path: Path, like_hub_id: bool) -> str:
    """What to give instead of a path that is not there."""
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    if near := get_close_matches(path.name, beside, 1):
        return f"did you mean {path.parent / near[0]}?"
    if like_hub_id:
        return f"a hub is not asked, since the folder {path.parent} is here: correct the name, or go to another folder"
    return f"give a model folder, a GGUF file, an engine folder, a hub id like org/name, or `{DEMO}`"


def engine_for(
    model: str | Path,
    convert_options: ConvertOptions | None = None,
    build_options: BuildOptions | None = None,
    progress: Progress = silent,
    revision: str | None = None,
) -> Path:
    """The engine folder of any MODEL: itself when it is one, else converted and built through the build cache.

    `convert_options` default to int8; `revision`: of a hub id. Raises PrecastError when the model cannot be had, or
    not be converted or built here.
    """
    path = resolve(model, progress, revision)
    kind = kind_of(path)
    if kind == "engine":
        if convert_options is not None or build_options is not None:
            raise PrecastError(f"{path} is an engine: how it was converted and built is fixed; give its model instead")
        return path
    return _through_cache(path, kind, convert_options, build_options, progress)


def _through_cache(
    path: Path,
    kind: str,
    convert_options: ConvertOptions | None,
    build_options: BuildOptions | None,
    progress: Progress,
) -> Path:
    from precast.builder import BuildOptions, build_cache
    from precast.builder.build import cpu_model
    from precast.own_code import code_digest
    from precast.quantize import ConvertOptions

    if kind == "checkpoint" and convert_options is not None:
        raise PrecastError(f"{path} is a checkpoint: its quantization is fixed; give its source model instead")
    converting = convert_options or ConvertOptions(quant="int8")
    building = build_options or BuildOptions()

    def check() -> None:
        if kind == "checkpoint":
            from precast.builder.weights import Checkpoint

            Checkpoint(path)
        else:
            from precast.quantize.describe import refuse_unsupported

            refuse_unsupported(path)

    key = build_cache.digest(
        {
            "source": build_cache.content_digest(path, check),
            "convert": asdict(converting) if kind == "source" else None,
            "build": asdict(building),
            "isa": kernels.isa_level(),
            "cpu": cpu_model(),
            "code": code_digest(),
        }
    )

    def make(folder: Path) -> None:
        if kind == "checkpoint":
            build(path, folder, building, progress)
            return
        from precast.quantize import convert

        with build_cache.work_folder(key) as work:
            convert(path, work / "checkpoint", converting, progress)
            build(work / "checkpoint", folder, building, progress)

    return build_cache.engine(key, make, progress)


def build(
    checkpoint: Path,
    output_dir: Path,
    options: BuildOptions | None = None,
    progress: Progress = silent,
    prefixes: Sequence[Prefix] = (),
) -> list[int]:
    """Builds an engine and runs it once before it appears (`finish`); → how many tokens of each prefix it holds.

    Raises PrecastError.
    """
    from precast.builder import BuildOptions
    from precast.builder import build as build_engine
    from precast.prefixes import prefix_tokens

    options = options or BuildOptions()
    prompts = prefix_tokens(prefixes, checkpoint, options)
    build_engine(
        checkpoint,
        output_dir,
        options,
        progress,
        prefixes=prompts,
        check=lambda folder: finish(folder, checkpoint, progress, prompts),
        available_memory=available_memory(),
    )
    return list(map(len, prompts))


def finish(engine: Path, checkpoint: Path, progress: Progress = silent, prefixes: Sequence[Sequence[int]] = ()) -> None:
    """Runs a fresh engine once: it gets the K/V of its prefixes, it must load, its logits must be finite, and a small
    model's must be those of the reference interpreter; the probabilities that were measured at a conversion must be its
    own. Then it gets what its steps cost. Raises EngineError, and CheckpointError for a damaged report."""
    from precast.evaluation.engine_quality import add_quality
    from precast.planning.step_costs import add_costs
    from precast.prefixes import add_prefixes

    add_prefixes(engine, prefixes, progress)
    progress("check", 0, 1)
    llm.self_check(engine)
    if (engine / "rank0.engine").stat().st_size <= SMALL_ENGINE_BYTES:
        _compare_with_reference(engine, checkpoint)
    add_quality(engine, checkpoint)
    progress("check", 1, 1)
    add_costs(engine, progress)


def _compare_with_reference(engine: Path, checkpoint: Path) -> None:
    """One prompt through the engine's steps and through the interpreter. Raises EngineError when they differ."""
    import numpy as np

    from precast._native import runtime
    from precast.builder.interpreter import Interpreter
    from precast.builder.models.decoder import decoder
    from precast.builder.weights import Checkpoint

    source, native = Checkpoint(checkpoint), runtime.Engine(engine)
    limits = native.limits
    rows = min(REFERENCE_TOKENS, limits.max_num_tokens, limits.max_seq_len)
    tokens = np.arange(1, rows + 1) * 7919 % limits.vocab_size
    kv_cache_dtype = str(native.plan_attributes["kv_cache_dtype"])
    interpreter = Interpreter(decoder(source.config), source, limits.max_seq_len)
    expected = interpreter.run(tokens.tolist(), kv_cache_dtype)
    pages = np.arange(-(-rows // limits.page_tokens), dtype=np.int32)
    native.allocate_pages(len(pages))
    got = native.forward(
        tokens.astype(np.int32), np.array([[rows, 0]], np.int32), pages[None], np.arange(rows, dtype=np.int32)
    )
    error = float(np.sqrt(np.mean((got - expected) ** 2)) / max(float(expected.std()), 1e-30))
    exact = source.config.dtype == "float32" and source.config.quantization.quant_algo is None
    allowed = EXACT_TOLERANCE if exact and kv_cache_dtype == "float32" else ROUNDED_TOLERANCE
    if not error <= allowed:
        raise EngineError(
            f"the engine of {checkpoint} computes other logits than the reference (error {error:.2g} of their standard "
            f"deviation, {allowed:.2g} is allowed): this is a defect of precast on this CPU, please report it"
        )


class LLM(llm.LLM):
    """`precast.runtime.llm.LLM` for any MODEL: a folder, a GGUF file, a hub id, `demo`, or an engine."""

    def __init__(
        self,
        model: str | Path,
        *,
        convert_options: ConvertOptions | None = None,
        build_options: BuildOptions | None = None,
        progress: Progress = silent,
        revision: str | None = None,
        **options: Unpack[RuntimeOptions],
    ) -> None:
        """Converts and builds through the build cache what is not an engine yet; raises as `engine_for` does too."""
        super().__init__(engine_for(model, convert_options, build_options, progress, revision), **options)
