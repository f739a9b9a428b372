"""The build cache: one maker a key, entries whole or absent, least recently used first out, strangers untouched."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from precast import files
from precast.builder import build_cache
from precast.builder.engine_file import EngineWriter
from precast.errors import PrecastError
from tests.faults import die_everywhere

A, B, C = (build_cache.digest(name) for name in "abc")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRECAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PRECAST_CACHE_MAX_BYTES", raising=False)
    return tmp_path / "cache"


class Maker:
    """Makes engines of one section of `size` bytes, and counts."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.made = 0

    def __call__(self, folder: Path) -> None:
        self.made += 1
        with files.new_folder(folder) as work:
            writer = EngineWriter(work / "rank0.engine", [("plan", "plan.v0", self.size)])
            writer.add("plan", bytes(self.size))
            writer.close()
            model = {"architecture": "Tiny", "num_hidden_layers": 2, "hidden_size": 64, "dtype": "bfloat16"}
            limits = {"kv_cache_dtype": "int8", "max_batch_size": 4, "max_seq_len": 128}
            files.write_json(work / "config.json", {"pretrained_config": model, "build_config": limits})


def set_age(key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(build_cache.cache_dir() / "engines" / key, (then, then))


def test_a_key_is_made_once() -> None:
    make = Maker()
    first, second = (build_cache.engine(A, make) for _ in range(2))
    assert first == second
    assert make.made == 1
    (entry,) = build_cache.entries()
    assert entry.model == "Tiny, 2 layers of 64, bfloat16, KV int8, up to 4 sequences of 128 tokens"


def test_concurrent_builders_of_one_key_wait_for_one() -> None:
    make = Maker()
    started, waiting = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        started.set()
        assert waiting.wait(30)
        make(folder)

    def second() -> None:
        build_cache.engine(A, make, progress=lambda *_: waiting.set())

    first = threading.Thread(target=lambda: build_cache.engine(A, slow))
    first.start()
    assert started.wait(30)
    other = threading.Thread(target=second)
    other.start()
    first.join()
    other.join()
    assert make.made == 1


def test_builders_of_different_keys_do_not_wait() -> None:
    def outer(folder: Path) -> None:
        build_cache.engine(B, Maker())
        Maker()(folder)

    build_cache.engine(A, outer)
    assert {entry.key for entry in build_cache.entries()} == {A, B}


@pytest.mark.parametrize("damage", ["truncated", "no config", "config not JSON", "no engine file"])
def test_a_broken_entry_is_made_again(damage: str) -> None:
    make = Maker()
    folder = build_cache.engine(A, make)
    if damage == "truncated":
        with open(folder / "rank0.engine", "r+b") as file:
            file.truncate(500)
    elif damage == "config not JSON":
        (folder / "config.json").write_text("{")
    else:
        (folder / ("config.json" if damage == "no config" else "rank0.engine")).unlink()
    build_cache.engine(A, make)
    assert make.made == 2
    assert [wrong for _, wrong in build_cache.verify()] == [None]


def test_a_maker_that_fails_leaves_nothing_and_the_next_one_works() -> None:
    def fail(folder: Path) -> None:
        raise PrecastError("no")

    with pytest.raises(PrecastError, match="no"):
        build_cache.engine(A, fail)
    assert build_cache.entries() == []
    assert build_cache.engine(A, Maker()).is_dir()


def test_verify_finds_one_changed_byte() -> None:
    for key in (A, B):
        build_cache.engine(key, Maker())
    path = build_cache.cache_dir() / "engines" / A / "rank0.engine"
    raw = bytearray(path.read_bytes())
    raw[64] ^= 1  # the first byte behind the header
    path.write_bytes(raw)
    found = {entry.key: wrong for entry, wrong in build_cache.verify()}
    assert found[B] is None
    assert "checksum mismatch in section plan" in str(found[A])


def test_prune_removes_the_least_recently_used_first() -> None:
    for key, age in ((A, 30.0), (B, 20.0), (C, 10.0)):
        build_cache.engine(key, Maker())
        set_age(key, age)
    build_cache.engine(A, Maker())  # used now
    size = build_cache.entries()[0].size
    assert [entry.key for entry in build_cache.prune(2 * size)] == [B]
    assert [entry.key for entry in build_cache.entries()] == [A, C]
    assert {entry.key for entry in build_cache.prune(0)} == {A, C}
    assert build_cache.entries() == []


def test_a_build_prunes_others_and_keeps_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    build_cache.engine(A, Maker())
    set_age(A, 10)
    monkeypatch.setenv("PRECAST_CACHE_MAX_BYTES", "0")
    assert build_cache.engine(B, Maker()).is_dir()
    assert [entry.key for entry in build_cache.entries()] == [B]


def test_a_wrong_size_limit_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_CACHE_MAX_BYTES", "10G")
    make = Maker()
    with pytest.raises(PrecastError, match="PRECAST_CACHE_MAX_BYTES must be a number"):
        build_cache.engine(A, make)
    assert make.made == 0


def test_an_engine_that_is_being_made_is_not_pruned() -> None:
    build_cache.engine(A, Maker())

    def remake(folder: Path) -> None:
        assert build_cache.prune(0) == []
        Maker()(folder)

    (build_cache.cache_dir() / "engines" / A / "config.json").write_text("{")
    build_cache.engine(A, remake)
    assert [entry.key for entry in build_cache.entries()] == [A]


def test_strangers_are_never_touched(cache: Path) -> None:
    build_cache.engine(A, Maker())
    strangers = [
        cache / "notes.txt",
        cache / "engines" / "notes.txt",
        cache / "engines" / B,  # a file with the name of a key
        cache / "engines" / C / "photo.jpg",  # a folder with the name of a key
        cache / "engines" / "mine" / "config.json",
        cache / "engines" / f".{A}.backup",
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    assert [entry.key for entry in build_cache.prune(0)] == [A]
    assert all(path.read_text() == "mine" for path in strangers)


def test_what_a_killed_build_left_is_swept(cache: Path) -> None:
    for key in (A, B):
        left = cache / "engines" / f".{key}.tmp-1-xyz"
        left.mkdir(parents=True)
        (left / "rank0.engine").write_bytes(b"half")
    build_cache.engine(A, Maker())
    assert [path.name for path in (cache / "engines").iterdir()] == [A]


def test_a_work_folder_of_a_running_build_is_not_swept() -> None:
    def make(folder: Path) -> None:
        with build_cache.work_folder(A) as work:
            build_cache.prune(0)
            assert work.is_dir()
            Maker()(folder)

    build_cache.engine(A, make)


def test_a_kill_anywhere_leaves_whole_entries_or_none(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")

    def work() -> None:
        model.write_bytes(model.read_bytes() + b"x")  # another content, so that digests are stored anew
        build_cache.engine(build_cache.content_digest(model), Maker())

    def check(point: int) -> None:
        assert all(wrong is None for _, wrong in build_cache.verify())

    assert die_everywhere(work, check) >= 8
    before = len(build_cache.entries())
    work()
    assert len(build_cache.entries()) == before + 1


def test_an_unwritable_cache_is_one_sentence(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(PrecastError, match="set PRECAST_CACHE to another one"):
        build_cache.engine(A, Maker())


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_cache.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("PRECAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build_cache.cache_dir() == tmp_path / "xdg" / "precast"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    return folder


def test_content_is_names_and_bytes_of_what_a_model_is_made_of(model: Path, tmp_path: Path) -> None:
    first = build_cache.content_digest(model)
    (model / "README.md").write_text("words")
    (model / "pytorch_model.bin").write_bytes(b"the same weights as a pickle")
    assert build_cache.content_digest(model) == first
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert build_cache.content_digest(copy) == first
    (copy / "tokenizer.json").rename(copy / "other.json")
    assert build_cache.content_digest(copy) != first


def test_a_changed_file_is_hashed_again(model: Path) -> None:
    first = build_cache.content_digest(model)
    (model / "model.safetensors").write_text("model.safetensorz")
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert build_cache.content_digest(model) != first


def test_an_unchanged_file_is_not_read_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_cache.content_digest(model)

    def fail(*_: object) -> None:
        raise AssertionError("a file was hashed again")

    monkeypatch.setattr(build_cache.hashlib, "file_digest", fail)
    assert build_cache.content_digest(model) == first


def test_links_count_as_what_they_point_to(model: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in model.iterdir():
        (linked / path.name).symlink_to(path)
    assert build_cache.content_digest(linked) == build_cache.content_digest(model)


def test_damaged_digests_are_ignored(model: Path, cache: Path) -> None:
    first = build_cache.content_digest(model)
    for damage in ("{", "[]", "[" * 100_000, '{"a": 1}'):
        (cache / "digests.json").write_text(damage)
        assert build_cache.content_digest(model) == first
