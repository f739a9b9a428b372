"""Folders that appear by one rename: leftovers of the dead are swept, an old folder comes back, strangers stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from precast import files
from precast.errors import PrecastError


def pid_of_the_dead() -> int:
    """The id of a process that has ended."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def make(target: Path, text: str = "new") -> None:
    with files.new_folder(target, replaces="x") as folder:
        files.write_json(folder / "config.json", {"format": "x", "text": text})


def text(target: Path) -> str:
    return (target / "config.json").read_text()


def test_leftovers_of_dead_makers_are_swept_and_those_of_the_living_stay(tmp_path: Path) -> None:
    dead, alive = pid_of_the_dead(), os.getppid()
    for name in (f".a.tmp-{dead}-x", f".a.tmp-{alive}-x", ".a.tmp-notes", f".b.tmp-{dead}-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    make(tmp_path / "a")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a", f".a.tmp-{alive}-x", ".a.tmp-notes", f".b.tmp-{dead}-x"}


def test_a_folder_that_was_moved_aside_by_the_dead_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "a"
    make(target, "old")
    target.rename(tmp_path / f".a.tmp-{pid_of_the_dead()}-x.old")
    with pytest.raises(RuntimeError), files.new_folder(target, replaces="x"):
        raise RuntimeError
    assert "old" in text(target)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_signal_right_behind_the_making_of_a_folder_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder = os.mkdir

    def make_and_be_interrupted(path: Path, mode: int = 0o777) -> None:
        make_folder(path, mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", make_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_the_old_folder(tmp_path: Path) -> None:
    make(tmp_path / "a", "old")

    def interrupted() -> None:
        with files.new_folder(tmp_path / "a", replaces="x") as folder:
            files.write_bytes(folder / "half", b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "old" in text(tmp_path / "a")
    make(tmp_path / "a", "new")
    assert "new" in text(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": "y"}', "{}"])
def test_a_strangers_folder_is_never_replaced(content: str | None, tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.mkdir()
    if content is not None:
        (target / "config.json").write_text(content)
    (target / "other").write_text("mine")
    with pytest.raises(PrecastError, match="other files"):
        make(target)
    assert (target / "other").read_text() == "mine"


def test_a_file_and_a_dangling_link_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(PrecastError, match="not a folder"):
            make(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"


def test_parents_are_made_and_the_folder_is_readable(tmp_path: Path) -> None:
    make(tmp_path / "deep" / "er" / "a")
    assert (tmp_path / "deep" / "er" / "a").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", ["notes.txt", "model.gguf", "sources/weights.safetensors"])
def test_strangers_inside_a_folder_of_ours_are_never_removed(name: str, tmp_path: Path) -> None:
    make(tmp_path / "a", "old")
    stranger = tmp_path / "a" / name
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text("mine")
    with pytest.raises(PrecastError, match="holds other files"):
        make(tmp_path / "a")
    assert stranger.read_text() == "mine"


def test_strangers_that_appear_meanwhile_are_never_removed(tmp_path: Path) -> None:
    def overtaken() -> None:
        with files.new_folder(tmp_path / "a"):
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "thesis.tex").write_text("mine")

    with pytest.raises(PrecastError, match="holds other files"):
        overtaken()
    assert (tmp_path / "a" / "thesis.tex").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    make(tmp_path / "disk" / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    make(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert "new" in text(tmp_path / "disk" / "real")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "disk", "link", "real"]
