"""Mistakes and damage: one sentence that names what is wrong, and exit code 1 (failed) or 2 (misused)."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from precast.builder.engine_file import EngineFile
from tests.e2e.command_line import precast, start

USAGE = {
    "no such command": (["frobnicate"], "frobnicate"),
    "no prompt": (["run", "ENGINE"], "standard input"),
    "empty prompt": (["run", "ENGINE", ""], "empty"),
    "empty standard input": (["run", "ENGINE", "-"], "empty"),
    "prompt and file": (["run", "ENGINE", "hi", "--input-file", "x"], "either"),
    "output file alone": (["run", "ENGINE", "hi", "--output-file", "x"], "--input-file"),
    "file onto itself": (["run", "ENGINE", "--input-file", "x", "--output-file", "./x"], "overwrite"),
    "temperature": (["run", "ENGINE", "hi", "--temperature", "-1"], "--temperature"),
    "temperature that is no number": (["run", "ENGINE", "hi", "--temperature", "hot"], "hot"),
    "top-p": (["run", "ENGINE", "hi", "--top-p", "0"], "--top-p"),
    "min-p": (["run", "ENGINE", "hi", "--min-p", "2"], "--min-p"),
    "max-tokens": (["run", "ENGINE", "hi", "--max-tokens", "-5"], "--max-tokens"),
    "seed": (["run", "ENGINE", "hi", "--seed", "18446744073709551616"], "--seed"),
    "memory": (["run", "ENGINE", "hi", "--kv-cache-memory", "lots"], "lots"),
    "unknown option": (["run", "ENGINE", "hi", "--tempurature", "1"], "--tempurature"),
    "unknown quantization": (["convert", "HF", "--output-dir", "x", "--quant", "int3"], "int3"),
    "no output folder": (["convert", "HF"], "--output-dir"),
    "batch size": (["build", "CKPT", "--output-dir", "x", "--max-batch-size", "0"], "--max-batch-size"),
    "verify of a model": (["inspect", "HF", "--verify"], "--verify"),
    "prune of nothing": (["cache", "prune"], "--all"),
}

FAILURES = {
    "missing model": (["run", "missing", "hi"], "missing"),
    "hub id": (["run", "some/model", "hi"], "some/model"),
    "missing model to convert": (["convert", "missing", "--output-dir", "x"], "missing"),
    "missing checkpoint": (["build", "missing", "--output-dir", "x"], "missing does not exist"),
    "missing path to inspect": (["inspect", "missing"], "missing"),
    "missing file in a folder": (["run", "empty/missing", "hi"], "does not exist"),
    "missing GGUF file": (["run", "some/missing.gguf", "hi"], "does not exist"),
    "a file of an engine": (["run", "ENGINE/rank0.engine", "hi"], "give the folder"),
    "a file of a model": (["inspect", "HF/config.json"], "give the folder"),
    "folder of GGUF files": (["convert", "GGUFS", "--output-dir", "x"], "one.gguf"),
    "missing input file": (["run", "ENGINE", "--input-file", "missing.jsonl"], "missing.jsonl"),
    "folder of something else": (["run", "EMPTY", "hi"], "config.json"),
    "file of something else": (["inspect", "TEXT"], "neither"),
    "building a model": (["build", "HF", "--output-dir", "x"], "checkpoint"),
    "converting a checkpoint": (["convert", "CKPT", "--output-dir", "x"], "--output-dir ENGINE"),
    "converting an engine": (["convert", "ENGINE", "--output-dir", "x"], "precast run"),
    "quantizing an engine": (["run", "ENGINE", "hi", "--quant", "int8"], "engine"),
    "too many tokens for the model": (["build", "CKPT", "--output-dir", "x", "--max-seq-len", "99999"], "99999"),
    "output below a file": (["convert", "HF", "--output-dir", "TEXT/x"], "TEXT"),
    "output where nobody may write": (["convert", "HF", "--output-dir", "/sys/x"], "/sys"),
    "output over other files": (["convert", "HF", "--output-dir", "OTHER"], "OTHER"),
    "answers where nobody may write": (["run", "ENGINE", "--input-file", "GOOD", "--output-file", "/sys/x"], "/sys/x"),
    "prompt longer than the engine": (["run", "ENGINE", "the " * 9000], "8192"),
    "too little memory": (["run", "ENGINE", "hi", "--kv-cache-memory", "1K"], "memory"),
    "input that is not JSON": (["run", "ENGINE", "--input-file", "TEXT"], "line 1"),
}


@pytest.fixture
def stand(hf_folder: Path, checkpoint: Path, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the names of USAGE and FAILURES by paths, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "ggufs").mkdir()
    (tmp_path / "ggufs" / "one.gguf").write_bytes(b"GGUF")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    (tmp_path / "text").write_text("just some text\n")
    (tmp_path / "good").write_text('{"prompt": "hi"}\n')
    (tmp_path / "x").write_text('{"prompt": "hi"}\n')
    names = {"HF": hf_folder, "CKPT": checkpoint, "ENGINE": engine}
    names |= {name: tmp_path / name.lower() for name in ("EMPTY", "GGUFS", "OTHER", "TEXT", "GOOD")}

    def replaced(text: str) -> str:
        head, _, tail = text.partition("/")
        return str(names[head] / tail if tail else names[head]) if head in names else text

    return replaced


@pytest.mark.parametrize("case", USAGE)
def test_misuse_exits_with_2(case: str, stand: Any) -> None:
    arguments, named = USAGE[case]
    assert named in precast(*map(stand, arguments)).failed(2)


@pytest.mark.parametrize("case", FAILURES)
def test_failure_exits_with_1(case: str, stand: Any, tmp_path: Path) -> None:
    arguments, named = FAILURES[case]
    (tmp_path / "x").unlink()
    before = sorted(tmp_path.rglob("*"))
    assert stand(named) in precast(*map(stand, arguments)).failed(1)
    assert sorted(tmp_path.rglob("*")) == before  # and nothing is left behind


@pytest.mark.parametrize(
    "line",
    ["[1]", "{}", '{"prompt": ""}', '{"prompt": 5}', '{"messages": []}', '{"prompt": "a", "heat": 2}', "\x00"],
)
def test_bad_lines_of_an_input_file_are_named(line: str, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    assert "line 2" in precast("run", engine, "--input-file", path).failed(1)


@pytest.mark.parametrize("messages", ['["a"]', '[{"content": "no role"}]', "[[1]]", '["a", 1]'])
def test_bad_messages_are_refused(messages: str, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n{"messages": ' + messages + "}\n")
    assert "line 2: a prompt must be" in precast("run", engine, "--input-file", path).failed(1)


def test_input_that_is_not_text(engine: Path) -> None:
    assert "UTF-8" in precast("run", engine, "-", stdin=b"\xff\xfe").failed(1)


def damaged(engine: Path, folder: Path, change: Any) -> Path:
    """A copy of the engine whose file `change(bytearray)` has been at."""
    copy = folder / "copy"
    shutil.copytree(engine, copy)
    data = bytearray((copy / "rank0.engine").read_bytes())
    (copy / "rank0.engine").write_bytes(change(data))
    return copy


def flipped(at: int) -> Any:
    def change(data: bytearray) -> bytearray:
        data[at] ^= 0x10
        return data

    return change


DAMAGE = {
    "no bytes": lambda data: b"",
    "half of it": lambda data: data[: len(data) // 2],
    "last byte gone": lambda data: data[:-1],
    "magic flipped": flipped(0),
    "header flipped": flipped(17),
    "plan flipped": flipped(70),
    "section table flipped": flipped(-1),
    "bytes behind it": lambda data: data + b"\0",
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_engine_does_not_load(case: str, engine: Path, tmp_path: Path) -> None:
    copy = damaged(engine, tmp_path, DAMAGE[case])
    assert "rank0.engine" in precast("run", copy, "hi").failed(1)
    assert "rank0.engine" in precast("inspect", copy).failed(1)


def test_a_flipped_weight_is_found_by_verify(engine: Path, tmp_path: Path) -> None:
    weights = EngineFile.open(engine / "rank0.engine").sections["transformer.vocab_embedding.weight"]
    copy = damaged(engine, tmp_path, flipped(weights.offset))
    found = precast("inspect", copy, "--verify", "--json")
    assert "damaged" in found.failed(1)
    assert len(json.loads(found.out)["damage"]) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"format": "precast-engine", "format_version": 99}'),
        ("rank0.engine", None),
        ("tokenizer.json", "{}"),
    ],
)
def test_a_broken_engine_folder_is_refused(name: str, text: str | None, engine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "engine"
    shutil.copytree(engine, copy)
    (copy / name).unlink()
    if text is not None:
        (copy / name).write_text(text)
    assert "engine" in precast("run", copy, "hi").failed(1)


def test_an_isa_level_that_cannot_run_is_named(engine: Path) -> None:
    assert "sse9" in precast("run", engine, "hi", PRECAST_ISA="sse9").failed(1)


def test_a_cache_that_cannot_hold_the_demo_is_named() -> None:
    assert "PRECAST_CACHE" in precast("run", "demo", "hi", PRECAST_CACHE="/sys/nowhere").failed(1)


def test_a_cache_that_cannot_be_written_is_named(hf_folder: Path) -> None:
    assert "/sys/cache" in precast("run", hf_folder, "hi", PRECAST_CACHE="/sys/cache").failed(1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_an_answer(number: int, code: int, engine: Path) -> None:
    running = start("run", engine, "the", "--ignore-eos", "--max-tokens", 8000, "--raw")
    assert running.stdout is not None
    assert running.stdout.read(1)
    running.send_signal(number)
    _, err = running.communicate()
    assert running.returncode == code
    assert b"Traceback" not in err


def test_a_reader_that_leaves_early_is_no_fault(engine: Path) -> None:
    running = start("run", engine, "the", "--ignore-eos", "--max-tokens", 8000, "--raw")
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.read(1)
    running.stdout.close()
    with running:
        assert running.stderr.read() == b""
    assert running.returncode == 1
