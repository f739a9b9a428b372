"""A process that forks while it serves: threads stay in the parent, which goes on; the child is told so and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from precast.pipeline import build
from precast.quantize import convert
from tests.tiny import tiny_llama

SCRIPT = """
import os, sys
from precast import LLM, SamplingParams
from precast.errors import EngineError

llm = LLM(sys.argv[1], num_threads=2)
params = SamplingParams(max_tokens=3, ignore_eos=True)
expected = llm.generate([5, 6, 7], params)[0].token_ids
stream = llm.stream([5, 6, 7], SamplingParams(max_tokens=100, ignore_eos=True))
child = os.fork()
if child == 0:
    for action in (lambda: llm.generate([5, 6, 7], params), lambda: next(stream), llm.stats):
        try:
            action()
        except EngineError as error:
            assert "fork" in str(error)
        else:
            os._exit(1)
    stream.close()
    llm.close()
    with LLM(sys.argv[1]) as own:
        assert own.generate([5, 6, 7], params)[0].token_ids == expected
    END
assert os.waitpid(child, 0)[1] == 0
assert sum(len(delta.token_ids) for delta in stream) == 100
assert llm.generate([5, 6, 7], params)[0].token_ids == expected
print("parent goes on")
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forked")
    tiny_llama(folder / "hf")
    convert(folder / "hf", folder / "checkpoint")
    build(folder / "checkpoint", folder / "engine")
    return folder / "engine"


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_a_child_is_told_and_the_parent_goes_on(end: str, engine: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("END", end), str(engine)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "parent goes on\n"
