"""SIGTERM and Ctrl-C while answers are made: what was printed stays, and the exit code tells."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.command_line import precast, start

LONG = ("--ignore-eos", "--temperature", 0, "--max-tokens", 8000)
SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


def out_of(running: subprocess.Popen[bytes]) -> IO[bytes]:
    assert running.stdout is not None
    return running.stdout


def end(running: subprocess.Popen[bytes], first: bytes) -> tuple[int, str, str]:
    """Waits for the end; → exit code, standard output that begins with `first`, standard error."""
    if running.stdin is not None:
        running.stdin.close()
    assert running.stderr is not None
    # Not communicate(), which passes over what reading `first` has buffered.
    with running:
        out, err = out_of(running).read(), running.stderr.read()
    return running.returncode, (first + out).decode(errors="replace"), err.decode()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_run_ends_and_keeps_what_it_printed(number: int, code: int, engine: Path) -> None:
    running = start("run", engine, "the dog", *LONG)
    first = out_of(running).read(40)
    running.send_signal(number)
    ended, out, err = end(running, first)
    assert ended == code, err
    assert "Traceback" not in err
    whole = precast("run", engine, "the dog", *LONG).done()
    assert len(out) < len(whole)  # of which the pipe holds half at most
    assert whole.startswith(out.rstrip("\n\ufffd"))


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_file_of_prompts_ends_behind_a_whole_line(number: int, code: int, engine: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(json.dumps({"prompt": "the dog"}) + "\n")
    with (tmp_path / "in").open("a") as file:
        file.write((json.dumps({"prompt": "the fox"}) + "\n") * 400)
    running = start("run", engine, "--input-file", tmp_path / "in", *LONG[:-1], 300)
    first = out_of(running).readline()
    running.send_signal(number)
    ended, out, err = end(running, first)
    assert ended == code, err
    assert "Traceback" not in err
    assert out.endswith("\n")
    answers = [json.loads(line) for line in out.rstrip("\n").split("\n")]
    assert len(answers) < 401
    assert all(answer["finish_reason"] == "length" for answer in answers)


def test_chat_ends_in_the_middle_of_an_answer(engine: Path) -> None:
    running = start("chat", engine, *LONG)
    assert running.stdin is not None
    running.stdin.write(b"the dog\n")
    running.stdin.flush()
    first = out_of(running).read(40)
    running.send_signal(signal.SIGTERM)
    ended, _, err = end(running, first)
    assert (ended, err) == (143, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_without_a_traceback(number: int, engine: Path) -> None:
    running = start("run", engine, "the dog", *LONG)
    first = out_of(running).read(40)
    running.send_signal(number)
    time.sleep(0.01)
    running.send_signal(number)
    ended, _, err = end(running, first)
    assert ended in (-number, 128 + number)
    assert "Traceback" not in err


DRAIN = """
import signal, sys, time
from precast import LLM, SamplingParams

def terminated(*_):
    raise SystemExit

llm = LLM(sys.argv[1])
signal.signal(signal.SIGTERM, terminated)
streams = [llm.stream([5, 6, i], SamplingParams(max_tokens=int(sys.argv[2]), ignore_eos=True)) for i in range(8)]
begun = {streams[0]: next(streams[0])}  # which may be all of it
try:
    print("started", flush=True)
    while True:
        time.sleep(1)  # not signal.pause(), which would sleep on after a signal that came just before it
finally:
    drained = llm.close(drain=True, timeout=float(sys.argv[3]))
    reasons = {[begun.get(stream), *stream][-1].finish_reason for stream in streams}
    assert reasons <= {"length", "cancelled"}
    assert drained == (reasons == {"length"})
    sys.exit(0 if drained else 3)
"""


@pytest.mark.parametrize(("max_tokens", "timeout", "code"), [(40, 60, 0), (8000, 0.05, 3)])
def test_a_server_in_python_drains_or_aborts_and_can_tell(
    max_tokens: int, timeout: float, code: int, engine: Path
) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", DRAIN, str(engine), str(max_tokens), str(timeout)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = out_of(running).readline()
    running.send_signal(signal.SIGTERM)
    assert end(running, first) == (code, "started\n", "")
