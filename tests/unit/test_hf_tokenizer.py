"""Folders without tokenizer.json: the tokenizer made of their other files is the one that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from precast import files
from precast.errors import SourceError
from precast.quantize.sources.hf_tokenizer import made_tokenizer
from precast.runtime.text import vocab
from precast.runtime.text.tokenizer import Tokenizer
from tests.unit.test_sentencepiece import KINDS, trained
from tests.unit.test_tokenizer import TEXTS, byte_level


def vocab_and_merges(folder: Path, **config: Any) -> None:
    """The files of GPT-2 and Qwen 2."""
    model = json.loads(byte_level().to_str())["model"]
    table = model["vocab"] | {"<|endoftext|>": len(model["vocab"])}
    (folder / "vocab.json").write_text(json.dumps(table))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def loaded(folder: Path, made: Path) -> Tokenizer:
    """The tokenizer as the checkpoint gets it."""
    for name, content in made_tokenizer(folder).items():
        files.write_json(made / name, content)
    return Tokenizer.from_folder(made)


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"])
@pytest.mark.parametrize("prefix", [False, True])
def test_vocab_and_merges(kind: str, prefix: bool, tmp_path: Path, made: Path) -> None:
    vocab_and_merges(tmp_path, tokenizer_class=kind, add_prefix_space=prefix)
    (tmp_path / "added_tokens.json").write_text('{"<|im_end|>": 501, "<|im_start|>": 500}')
    ours, theirs = loaded(tmp_path, made), AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "don't I'LL <|endoftext|>", "12 123 1234", "cafe\u0301"):
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"], text
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.eos_token_id == theirs.eos_token_id
    vocab.section(made, 600)


@pytest.mark.parametrize("ends", [(True, False), (False, True), (True, True)])
def test_bos_and_eos_where_the_config_asks(ends: tuple[bool, bool], tmp_path: Path, made: Path) -> None:
    tokens = {"bos_token": "</s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}}  # as OPT's
    vocab_and_merges(tmp_path, tokenizer_class="GPT2Tokenizer", add_bos_token=ends[0], add_eos_token=ends[1], **tokens)
    ours, theirs = loaded(tmp_path, made), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode("the dog") == theirs("the dog")["input_ids"]
    assert len(ours.encode("the dog")) == len(ours.encode("the dog", add_special_tokens=False)) + sum(ends)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_model(kind: str, tmp_path: Path, made: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(KINDS[kind]))
    ours = loaded(tmp_path, made)
    assert (ours.bos_token, ours.eos_token) == ("<s>", "</s>")
    assert ours.encode("the dog") == [1, *ours.encode("the dog", add_special_tokens=False)]
    assert ours.encode("<s>the</s>", add_special_tokens=False)[::4][0] == 1
    assert ours.decode(ours.encode("the dog 🙂 §")) == "the dog 🙂 §"
    size = ours.vocab_size
    assert vocab.section(made, size)


def test_tokenizer_model_without_bos_where_the_config_says_so(tmp_path: Path, made: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(KINDS["llama"]))
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false, "add_eos_token": true}')
    ours = loaded(tmp_path, made)
    assert ours.encode("the") == [*ours.encode("the", add_special_tokens=False), 2]


def test_a_tokenizer_json_is_kept(tmp_path: Path) -> None:
    vocab_and_merges(tmp_path)
    byte_level().save(str(tmp_path / "tokenizer.json"))
    assert made_tokenizer(tmp_path) == {}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"merges.txt": "a b\nx"}, "'x' is not a pair"),
        ({"merges.txt": None}, "merges.txt cannot be read"),
        ({"merges.txt": "qqq rrr\n"}, "makes no tokenizer"),
        ({"vocab.json": "[]"}, "JSON object"),
        ({"vocab.json": '{"a": -1}'}, "makes no tokenizer"),
        ({"tokenizer_config.json": '{"tokenizer_class": "RobertaTokenizer"}'}, "RobertaTokenizer"),
        ({"tokenizer_config.json": '{"add_bos_token": true, "bos_token": null}'}, "names none"),
        ({"added_tokens.json": '{"a": "b"}'}, "makes no tokenizer"),
        ({"vocab.json": None, "tekken.json": "{}"}, "tekken.json is not supported"),
        ({"tokenizer.model": "IQ== 0\n"}, "tiktoken"),
    ],
)
def test_what_makes_no_tokenizer_is_refused(change: dict[str, str | None], word: str, tmp_path: Path) -> None:
    vocab_and_merges(tmp_path)
    for name, content in change.items():
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=word):
        made_tokenizer(tmp_path)
