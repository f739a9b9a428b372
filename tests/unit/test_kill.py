"""A kill at any write, fsync or rename of convert and build: nothing half-made loads, and the next run succeeds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from precast import files
from precast.builder import BuildOptions, build
from precast.builder.engine_file import EngineFile
from precast.builder.weights import Checkpoint
from precast.errors import PrecastError
from precast.quantize import ConvertOptions, convert
from tests.faults import die_everywhere, fail_everywhere
from tests.tiny import tiny_llama

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "hf"
    tiny_llama(folder, **SMALL)
    (folder / "generation_config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("existing", [False, True], ids=["new", "over an existing one"])
def test_convert_killed_anywhere_leaves_all_or_nothing(
    source: Path, tmp_path: Path, existing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "ckpt"

    def work() -> None:
        convert(source, out, ConvertOptions("int8"))

    def check(point: int) -> None:
        if out.exists():  # whole, old or new
            Checkpoint(out)
        elif existing:
            # died between moving the old one aside and the rename: the next run brings one of them back
            work()
        if not existing:
            shutil.rmtree(out, ignore_errors=True)
            work()
            Checkpoint(out)
            shutil.rmtree(out)

    if existing:
        work()
        whole = work
    else:

        def whole() -> None:
            shutil.rmtree(out, ignore_errors=True)
            work()

    points = die_everywhere(whole, check)
    assert points > 10
    monkeypatch.setattr(files, "_alive", lambda pid: False)  # the makers of what is left over are gone
    work()
    Checkpoint(out)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


@pytest.mark.parametrize("existing", [False, True], ids=["new", "over an existing one"])
def test_convert_that_fails_anywhere_leaves_all_or_nothing(source: Path, tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "out" / "ckpt"

    def work() -> None:
        if not existing:
            shutil.rmtree(out, ignore_errors=True)
        convert(source, out, ConvertOptions("int8"))

    def check(point: int) -> None:
        assert [path.name for path in out.parent.iterdir()] in ([], ["ckpt"])
        assert out.exists() or not existing
        if out.exists():
            Checkpoint(out)

    if existing:
        convert(source, out, ConvertOptions())
    assert fail_everywhere(work, check) > 10
    work()
    Checkpoint(out)


def test_build_killed_anywhere_leaves_all_or_nothing(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ckpt", ConvertOptions("int8"))
    out = tmp_path / "engines" / "engine"

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        # Timing writes too, but into temporary folders, and another number of times when it is in the cache.
        build(tmp_path / "ckpt", out, BuildOptions(optimization_level=0))

    def check(point: int) -> None:
        if out.exists():
            engine = EngineFile.open(out / "rank0.engine")
            assert not list(engine.damage())
        for half_made in out.parent.glob(".engine.tmp-*"):
            path = half_made / "rank0.engine"
            if path.exists():
                try:
                    engine = EngineFile.open(path)
                except PrecastError:
                    continue
                assert not list(engine.damage())

    assert die_everywhere(work, check) > 10
    work()
    EngineFile.open(out / "rank0.engine")
