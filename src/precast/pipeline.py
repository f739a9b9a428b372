"""resolve → convert → build → finish: the only code that knows all the folders."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast import __version__
from precast.errors import PrecastError, SourceError
from precast.progress import Progress, silent
from precast.runtime import llm
from precast.runtime.memory import available_memory

if TYPE_CHECKING:
    from precast.builder import BuildOptions
    from precast.quantize import ConvertOptions

DEMO = "demo"


def kind_of(path: Path) -> str:
    """ "engine", "checkpoint" or "source", by the `format` key of the folder's config.json."""
    try:
        value = json.loads((path / "config.json").read_bytes())
        named = value.get("format") if isinstance(value, dict) else None
    except (OSError, ValueError, RecursionError):
        named = None
    return {"precast-engine": "engine", "precast-checkpoint": "checkpoint"}.get(str(named), "source")


def resolve(model: str | Path, progress: Progress = silent) -> Path:
    """The folder or file that MODEL names; `demo` is fetched. Raises SourceError when there is none."""
    if model == DEMO:
        from precast.builder import build_cache
        from precast.quantize.demo import fetch_demo

        return fetch_demo(build_cache.cache_dir(), progress)
    path = Path(model).expanduser()
    if path.exists():
        return path
    text = str(model)
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        raise SourceError(
            f"there is no {text} here, and model hubs are not supported so far: download the model's folder and give "
            "its path"
        )
    raise SourceError(f"{text} does not exist; give a model folder, a GGUF file, an engine folder, or `{DEMO}`")


def engine_for(
    model: str | Path,
    convert_options: ConvertOptions | None = None,
    build_options: BuildOptions | None = None,
    progress: Progress = silent,
) -> Path:
    """The engine folder of any MODEL: itself when it is one, else converted and built through the build cache.

    `convert_options` default to int8. Raises PrecastError when the model cannot be converted or built here.
    """
    path = resolve(model, progress)
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
    from precast.builder.targets.cpu.engine import NUMERICS_VERSION
    from precast.quantize.convert import ConvertOptions

    if kind == "checkpoint" and convert_options is not None:
        raise PrecastError(f"{path} is a checkpoint: its quantization is fixed; give its source model instead")
    converting = convert_options or ConvertOptions(quant="int8")
    building = build_options or BuildOptions()
    key = build_cache.digest(
        {
            "source": build_cache.content_digest(path),
            "convert": asdict(converting) if kind == "source" else None,
            "build": asdict(building),
            "isa": llm.isa_level(),
            "cpu": cpu_model(),
            "precast": __version__,
            "numerics": NUMERICS_VERSION,
        }
    )

    def make(folder: Path) -> None:
        if kind == "checkpoint":
            build(path, folder, building, progress)
            return
        from precast.quantize import convert

        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".checkpoint.tmp-", dir=folder.parent) as temporary:
            checkpoint = Path(temporary) / "checkpoint"
            convert(path, checkpoint, converting, progress)
            build(checkpoint, folder, building, progress)

    return build_cache.engine(key, make)


def build(checkpoint: Path, output_dir: Path, options: BuildOptions | None = None, progress: Progress = silent) -> None:
    """Builds an engine and runs it once before it appears (`finish`). Raises PrecastError."""
    from precast.builder import build as build_engine

    build_engine(
        checkpoint,
        output_dir,
        options,
        progress,
        check=lambda folder: finish(folder, progress),
        available_memory=available_memory(),
    )


def finish(engine: Path, progress: Progress = silent) -> None:
    """Runs a fresh engine once: it must load, and its logits must be finite. Raises EngineError."""
    progress("check", 0, 1)
    llm.self_check(engine)
    progress("check", 1, 1)


class LLM(llm.LLM):
    """`precast.runtime.llm.LLM` for any MODEL: a folder, a GGUF file, `demo`, or an engine."""

    def __init__(
        self,
        model: str | Path,
        *,
        convert_options: ConvertOptions | None = None,
        build_options: BuildOptions | None = None,
        progress: Progress = silent,
        **runtime: Any,
    ) -> None:
        """`runtime` as in `precast.runtime.llm.LLM`."""
        super().__init__(engine_for(model, convert_options, build_options, progress), **runtime)


class AsyncLLM(llm.AsyncLLM):
    """`precast.runtime.llm.AsyncLLM` for any MODEL, as `LLM` is."""

    def __init__(
        self,
        model: str | Path,
        *,
        convert_options: ConvertOptions | None = None,
        build_options: BuildOptions | None = None,
        progress: Progress = silent,
        **runtime: Any,
    ) -> None:
        """`runtime` as in `precast.runtime.llm.AsyncLLM`."""
        super().__init__(engine_for(model, convert_options, build_options, progress), **runtime)
