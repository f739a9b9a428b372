"""Every command on every hostile file: one sentence and exit code 1, in bounded memory; never a crash, a hang, or a
traceback."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import CHECKPOINTS, ENGINES, SOURCES, Hostile
from tests.hostile import worker as hostile_worker

HANG_S = 60
"""Far more than anything here takes, on a machine that is busy."""

MOST_BYTES = 200 << 20
"""What a refusal may take beyond what the process had before."""


class Worker:
    """The process that runs the commands; after a crash or a hang, which fail one test, there is another."""

    def __init__(self, *warm_up: list[str]) -> None:
        self._warm_up = warm_up
        self._process: subprocess.Popen[str] | None = None

    def run(self, *arguments: Any) -> dict[str, Any]:
        """What the command left; see worker.py."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            command = [sys.executable, str(hostile_worker.__file__)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            for given in self._warm_up:
                assert self._ask(given)["code"] == 0
        return self._ask([str(a) for a in arguments])

    def _ask(self, arguments: list[str]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(arguments) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], HANG_S)[0]:
            self.stop()
            pytest.fail(f"it hangs: {arguments}")
        line = process.stdout.readline()
        assert line, f"it crashes with code {process.wait()}: {arguments}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """Ends the process and closes its pipes."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def worker(
    hf_folder: Path, checkpoint: Path, engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    out = tmp_path_factory.mktemp("warm")
    made = Worker(
        ["inspect", str(hf_folder)],
        ["inspect", str(checkpoint)],
        ["inspect", str(engine)],
        ["build", str(checkpoint), "--output-dir", str(out / "engine"), "--max-seq-len", "64"],
        ["convert", str(hf_folder), "--output-dir", str(out / "checkpoint"), "--quant", "int8"],
        ["run", str(engine), "hi", "--max-tokens", "2"],
    )
    yield made
    made.stop()


def check(case: Hostile, good: Path, folder: Path, worker: Worker, *commands: str) -> None:
    """Each command refuses what the case makes of a copy of `good`, or works where it may."""
    shutil.copytree(good, folder / "model")
    path = case.change(folder / "model") or folder / "model"
    for command in commands:
        more = ["--output-dir", folder / "out"] if command in ("convert", "build") else []
        more = ["hi", "--max-tokens", "2"] if command == "run" else more
        done = worker.run(command, path, *more)
        told = f"{command}: {done}"[:3000]
        if done["code"] == 0:
            assert command in case.works or (command == "inspect" and "refused: none" not in done["out"]), told
            assert case.says in done["out"] or command in case.works, told
        else:
            lines = done["err"].splitlines()
            assert done["code"] == 1, told
            assert len(lines) == 1, told
            assert lines[0].startswith("error: "), told
            assert case.says in lines[0], told
            assert "fault in precast" not in lines[0], told
            assert lines[0].isprintable(), told
            assert len(lines[0]) < 2500, told
        assert done["peak_bytes"] < MOST_BYTES, told
        assert not (folder / "out").exists() or done["code"] == 0, told
        assert not list(folder.glob(".out.tmp*")), told
        shutil.rmtree(folder / "out", ignore_errors=True)


@pytest.mark.parametrize("case", SOURCES)
def test_a_hostile_model_is_refused(case: str, hf_folder: Path, tmp_path: Path, worker: Worker) -> None:
    check(SOURCES[case], hf_folder, tmp_path, worker, "inspect", "convert", "run")


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_hostile_checkpoint_is_refused(case: str, checkpoint: Path, tmp_path: Path, worker: Worker) -> None:
    check(CHECKPOINTS[case], checkpoint, tmp_path, worker, "inspect", "build", "run")


@pytest.mark.parametrize("case", ENGINES)
def test_a_hostile_engine_is_refused(case: str, engine: Path, tmp_path: Path, worker: Worker) -> None:
    check(ENGINES[case], engine, tmp_path, worker, "inspect", "run")
