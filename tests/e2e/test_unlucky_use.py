"""What surrounds a command: closed streams, names that are not text, zeros, old answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.command_line import COMMAND, precast

GREEDY = ("--temperature", 0, "--max-tokens", 4)


def with_closed(redirection: str, *arguments: str) -> tuple[int, str]:
    """Runs a command from a shell that closes a stream; → its exit code and standard error."""
    command = " ".join(f"'{a}'" for a in [*COMMAND, *arguments])
    done = subprocess.run(["sh", "-c", f"{command} {redirection}"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_zeros_are_values(engine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "engine"
    shutil.copytree(engine, copy)
    (copy / "generation_config.json").write_text('{"do_sample": true, "temperature": 1.5, "top_k": 7}')
    none = json.loads(precast("run", copy, "the", "--max-tokens", 0, "--json").done())
    assert none["token_ids"] == []
    assert none["finish_reason"] == "length"
    assert json.loads(precast("run", copy, "the", "--seed", 0, "--max-tokens", 1, "--json").done())["seed"] == 0
    assert precast("run", copy, "the dog", *GREEDY).done() == precast("run", engine, "the dog", *GREEDY).done()


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "says"),
    [
        (("run", "ENGINE", "-"), "<&-", 2, "empty"),
        (("chat", "ENGINE"), "<&-", 0, ""),
        (("run", "ENGINE", "hi", "--max-tokens", "2"), ">&-", 0, ""),
        (("run", "ENGINE", "hi"), ">/dev/full", 1, "No space left"),
        (("run", "missing", "hi"), "2>&-", 1, ""),
    ],
)
def test_closed_streams(arguments: tuple[str, ...], redirection: str, code: int, says: str, engine: Path) -> None:
    ended, err = with_closed(redirection, *(str(engine) if a == "ENGINE" else a for a in arguments))
    assert ended == code, err
    assert says in err
    assert "fault in precast" not in err


def test_folders_whose_names_are_not_text(hf_folder: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/not-\xff-text"))
    shutil.copytree(hf_folder, folder / "hf")
    precast("convert", folder / "hf", "--output-dir", folder / "checkpoint").done()
    precast("build", folder / "checkpoint", "--output-dir", folder / "engine").done()
    answer = precast("run", folder / "engine", "hi", *GREEDY).done()
    cache = str(tmp_path / "cache")
    assert precast("run", folder / "hf", "hi", "--quant", "none", *GREEDY, PRECAST_CACHE=cache).done() == answer
    (folder / "engine" / "rank0.engine").write_bytes(b"damaged")
    assert "rank0.engine" in precast("run", folder / "engine", "hi").failed(1)


def test_a_home_that_nobody_has() -> None:
    assert "~nobody-of-that-name/x" in precast("run", "~nobody-of-that-name/x", "hi").failed(1)


def test_a_line_of_an_input_file_ends_at_a_line_feed_alone(engine: Path, tmp_path: Path) -> None:
    prompts = ["one\u2028two", "three\x85four", "five\u2029six"]
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts]
    (tmp_path / "in").write_bytes("\r\n".join(lines).encode())
    answers = precast("run", engine, "--input-file", tmp_path / "in", *GREEDY).done()
    texts = [json.loads(line)["text"] for line in answers.rstrip("\n").split("\n")]
    assert texts == [json.loads(precast("run", engine, prompt, "--json", *GREEDY).done())["text"] for prompt in prompts]


def test_refused_prompts_leave_the_file_of_older_answers(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(json.dumps({"prompt": "the " * 9000}) + "\n")
    (tmp_path / "out").write_text("older answers")
    said = precast("run", engine, "--input-file", tmp_path / "in", "--output-file", tmp_path / "out").failed(1)
    assert "8192" in said
    assert (tmp_path / "out").read_text() == "older answers"
