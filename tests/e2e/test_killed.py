"""SIGKILL and Ctrl-C while artifacts are written: nothing half-made is left to load, and the next run succeeds."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import precast, start
from tests.tiny import tiny_chat_model

ROUNDS = 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that writing it takes a while: 50 MB."""
    folder = tmp_path_factory.mktemp("larger") / "hf"
    tiny_chat_model(folder, hidden_size=512, intermediate_size=2048, num_hidden_layers=3, head_dim=64)
    return folder


def leftovers(parent: Path) -> list[Path]:
    """Unfinished folders, apart from the cache's short-lived ones for its lists of hashes and timings."""
    folders = (Path(root) / name for root, names, _ in os.walk(parent) for name in names)  # some vanish meanwhile
    return [path for path in folders if fnmatch(path.name, ".*.tmp-*") and not fnmatch(path.name, ".*.json.tmp-*")]


def stop_at_work(running: subprocess.Popen[bytes], parent: Path, number: int, delay: float) -> None:
    """Sends a signal `delay` seconds after the command has begun to write."""
    while running.poll() is None and not leftovers(parent):
        time.sleep(0.002)
    time.sleep(delay)
    running.send_signal(number)
    running.communicate()


def delays(seed: int) -> Iterator[float]:
    return iter([0.0, *(random.Random(seed).uniform(0, 0.4) for _ in range(ROUNDS - 1))])


def test_convert_killed_then_run_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "checkpoint"
    out.parent.mkdir()
    command = ("convert", source, "--output-dir", out, "--quant", "int8")
    killed = 0
    for delay in delays(1):
        running = start(*command)
        stop_at_work(running, out.parent, signal.SIGKILL, delay)
        killed += running.returncode == -signal.SIGKILL
        if out.exists():
            precast("inspect", out).done()
    assert killed > 0
    precast(*command).done()
    precast("inspect", out).done()
    assert [path.name for path in out.parent.iterdir()] == ["checkpoint"]


def test_build_killed_then_run_again(source: Path, tmp_path: Path) -> None:
    precast("convert", source, "--output-dir", tmp_path / "checkpoint", "--quant", "int8").done()
    out = tmp_path / "out" / "engine"
    out.parent.mkdir()
    command = ("build", tmp_path / "checkpoint", "--output-dir", out)
    killed = 0
    for delay in delays(2):
        running = start(*command)
        stop_at_work(running, out.parent, signal.SIGKILL, delay)
        killed += running.returncode == -signal.SIGKILL
        if out.exists():
            precast("inspect", out, "--verify").done()
    assert killed > 0
    precast(*command).done()
    precast("inspect", out, "--verify").done()
    assert [path.name for path in out.parent.iterdir()] == ["engine"]


def test_run_of_a_model_killed_then_run_again(source: Path, tmp_path: Path) -> None:
    command = ("run", source, "the dog", "--max-tokens", 2)
    cache = {"PRECAST_CACHE": str(tmp_path / "cache")}
    for delay in delays(3):
        running = start(*command, **cache)
        stop_at_work(running, tmp_path, signal.SIGKILL, delay)
        assert precast("cache", "verify", **cache).code == 0
    precast(*command, **cache).done()
    assert precast("cache", "verify", **cache).done().endswith(" ok\n")
    assert leftovers(tmp_path) == []


def stopped_at_work(parent: Path, *command: Any) -> subprocess.Popen[bytes]:
    """A command that has begun to write into a folder and is far from its end; it sleeps until SIGCONT."""
    while True:
        running = start(*command)
        while running.poll() is None and not leftovers(parent):
            time.sleep(0.002)
        if running.poll() is None:
            running.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if running.poll() is None and sum(path.stat().st_size for path in parent.rglob("*")) < 4 << 20:
            return running
        running.kill()  # we came too late to see it begin
        running.communicate()
        shutil.rmtree(parent)
        parent.mkdir()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_cancelled_command_leaves_nothing(source: Path, tmp_path: Path, number: int, code: int) -> None:
    running = stopped_at_work(tmp_path, "convert", source, "--output-dir", tmp_path / "checkpoint", "--quant", "int8")
    running.send_signal(number)
    running.send_signal(signal.SIGCONT)
    running.communicate()
    assert running.returncode == code
    assert list(tmp_path.iterdir()) == []
