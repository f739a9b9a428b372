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


BARE = """
import gc, os, sys
import numpy as np
from precast._native import runtime
from precast.errors import EngineError

engine = runtime.Engine(sys.argv[1], 3)
engine.allocate_pages(1)
step = [np.array(values, np.int32) for values in ([5, 6, 7], [[3, 0]], [[0]], [2])]
logits = engine.forward(*step)
executor = runtime.Executor(runtime.Engine(sys.argv[1], 3).backend, num_pages=8)
busy = runtime.Executor(runtime.CountingBackend(step_seconds=0.02, max_seq_len=4096), num_pages=128)
params = runtime.SamplingParams()
params.ignore_eos = True
busy.submit([1, 2, 3], params)
child = os.fork()
if child == 0:
    assert (engine.forward(*step) == logits).all()
    for left in (executor, busy):
        try:
            left.submit([5, 6, 7], params)
        except EngineError as error:
            assert "fork" in str(error)
        else:
            os._exit(1)
        assert left.close() is False
    END
assert os.waitpid(child, 0)[1] == 0
assert busy.stats().alive
assert busy.close() is False
print("parent goes on")
"""


@pytest.mark.parametrize("end", ["del engine, executor, busy, left; gc.collect(); os._exit(0)", "sys.exit(0)"])
def test_a_child_is_not_held_up_by_objects_of_its_parent(end: str, engine: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE.replace("END", end), str(engine)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "parent goes on\n"


POOL = """
import multiprocessing
import sys
from precast import LLM, SamplingParams

params = SamplingParams(max_tokens=3, ignore_eos=True)

def answer(_):
    with LLM(sys.argv[1], num_threads=2) as own:
        return own.generate([5, 6, 7], params)[0].token_ids

llm = LLM(sys.argv[1], num_threads=2)
expected = llm.generate([5, 6, 7], params)[0].token_ids
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(answer, range(3)) == [expected] * 3
assert llm.close()
print("done")
"""


def test_forked_workers_load_engines_of_their_own(engine: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", POOL, str(engine)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
