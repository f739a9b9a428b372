"""Token ids, text and prompts as transformers gives them for the same folder."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as RustTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from precast.errors import RequestError, SourceError
from precast.runtime.text import vocab
from precast.runtime.text.tokenizer import Tokenizer, read_special_tokens

TEXTS = (
    *vocab.CORPUS,
    "",
    " ",
    "   ",
    "\n\n\n x",
    " Hello",
    "<s>hi</s>",
    "<|im_start|>user\nhi<|im_end|> there<tool>x</tool>",
    "a" * 300,
    "123 4567 89",
    "\u202e\ufeff\x00",
    "\r\n\t x",
    "ＡＢＣ ﬁ ½",
    "이것은 한국어",
    "🏳️‍🌈" * 3,
    "for (int i = 0; i < n; ++i) { a[i] += 1; }",
)


def byte_level() -> RustTokenizer:
    """As GPT-2's, with digits split one by one, special tokens and a token that is not special."""
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    rust.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    rust.add_tokens([AddedToken("<tool>", special=False)])
    return rust


def sentencepiece(prepend: bool) -> RustTokenizer:
    """As Llama 2's (`prepend`: a space in front of every text, which decoding drops) or Gemma's: ▁, byte fallback."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"abcdefghijklmnoprstuxyHTqvw.,'"]
    tokens += ["▁t", "he", "▁the", "▁▁", "▁H", "ll", "lo"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁"), ("▁", "H"), ("l", "l"), ("l", "o")]
    table = {token: i for i, token in enumerate(tokens)}
    rust = RustTokenizer(models.BPE(table, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prepend else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    rust.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prepend else steps)
    rust.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    rust.add_special_tokens(["<unk>", "<s>", "</s>"])
    return rust


def metaspace() -> RustTokenizer:
    """▁ put in front and taken away by Metaspace, no byte fallback."""
    rust = RustTokenizer(models.BPE(unk_token="<unk>"))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    rust.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"]))
    return rust


def unigram() -> RustTokenizer:
    """As T5's and XLNet's, with byte fallback: pieces by probability, spaces collapsed, ▁ in front."""
    rust = RustTokenizer(models.Unigram())
    rust.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>")
    rust.train_from_iterator(TEXTS * 3, trainer)
    return rust


def word_piece() -> RustTokenizer:
    """As BERT's, cased: words, and what goes on with them after ##."""
    rust = RustTokenizer(models.WordPiece(unk_token="<unk>"))
    rust.normalizer = normalizers.BertNormalizer(lowercase=False)
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    rust.train_from_iterator(TEXTS * 3, trainers.WordPieceTrainer(vocab_size=600, special_tokens=["<unk>", "<s>"]))
    return rust


KINDS = {
    "byte level": byte_level,
    "llama 2": lambda: sentencepiece(True),
    "gemma": lambda: sentencepiece(False),
    "metaspace": metaspace,
    "unigram": unigram,
    "word piece": word_piece,
}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tokenizer folder as transformers saves it."""
    rust = KINDS[request.param]()
    special: dict[str, Any] = {"unk_token": "<unk>"}
    if request.param == "byte level":
        special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    elif request.param in ("llama 2", "gemma"):
        special |= {"bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=rust, **special).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_and_text_are_transformers(folder: Path, add_special_tokens: bool) -> None:
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens)
        assert ids == theirs(text, add_special_tokens=add_special_tokens)["input_ids"], text
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)


def test_bytes_of_tokens_give_the_tokenizers_text(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    table = vocab.read_vocab(folder, 1000)
    assert len(vocab.section(folder, 1000)) == len(table.to_bytes())
    for text in TEXTS:
        ids = tokenizer.encode(text)
        for skip in (True, False):
            assert table.text(ids, skip) == tokenizer.decode(ids, skip), text


def test_the_section_reads_back(folder: Path) -> None:
    raw = vocab.section(folder, 1000)
    table = vocab.read_vocab(folder, 1000)
    size, options = (int.from_bytes(raw[i : i + 4], "little") for i in (0, 4))
    offsets = [int.from_bytes(raw[i : i + 4], "little") for i in range(8, 8 + 4 * (size + 1), 4)]
    start = 8 + 4 * (size + 1)
    assert (size, options) == (1000, table.options)
    assert [raw[start + a : start + b] for a, b in pairwise(offsets)] == table.tokens
    assert list(raw[start + offsets[-1] :]) == table.flags


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(SourceError, match="the model has 100"):
        vocab.section(tmp_path, 100)


def test_a_decoder_that_bytes_cannot_express_is_refused(tmp_path: Path) -> None:
    rust = byte_level()
    rust.decoder = decoders.CTC()
    rust.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(SourceError, match="decoder that precast does not know"):
        vocab.section(tmp_path, 1000)


def test_a_text_that_comes_back_differently_is_named(tmp_path: Path) -> None:
    rust = byte_level()
    rust.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("fox", "dog")])
    rust.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(SourceError, match="brown fox"):
        vocab.section(tmp_path, 1000)


def test_tokens_that_only_the_config_names_are_added(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=byte_level()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    content = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config["added_tokens_decoder"] = {"500": content | {"content": "<b>"}, "403": content | {"content": "<a>"}}
    config["eos_token"] = "<end>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = Tokenizer.from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "x<a>y<b>z<end>"
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.eos_token_id == theirs.eos_token_id
    flags = vocab.read_vocab(tmp_path, 1000).flags
    assert [flags[i] for i in ours.encode("<a><b><end>")] == [vocab.SPECIAL] * 3


def test_old_folders_name_their_tokens_in_special_tokens_map(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_end|>", "lstrip": false}}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert Tokenizer.from_folder(tmp_path).eos_token_id == theirs.eos_token_id is not None


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "no tokenizer.json"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"{}", "not a tokenizer"),
        (b'{"model":', "not a tokenizer"),
        (b"\xff\xfe", "not a tokenizer"),
    ],
)
def test_a_broken_tokenizer_is_one_sentence(content: bytes | None, word: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(SourceError, match=word):
        Tokenizer.from_folder(tmp_path)


def test_special_tokens_of_every_kind_are_transformers(tmp_path: Path) -> None:
    """Named ones, a model's own, extra ones; listed and not; with flags; in the vocabulary and not."""
    PreTrainedTokenizerFast(tokenizer_object=byte_level()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    flags = {"lstrip": True, "normalized": False, "rstrip": True, "single_word": False}
    listed = {"500": flags | {"content": "<a>", "special": False}, "403": flags | {"content": "<b>", "special": True}}
    objects = {"pad_token": {"__type": "AddedToken", "content": "<pad>"} | flags, "image_token": "<image>"}
    config |= {"added_tokens_decoder": listed, "eos_token": "<a>", "additional_special_tokens": ["<x>", "<tool>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | objects))
    ours, theirs = Tokenizer.from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("x <a> y <b> z<x>the<tool>t <pad> u <image> v", "<im", "<image><image>"):
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert read_special_tokens(tmp_path) == theirs.special_tokens_map


SMALL: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"u": 0, "a": 1}, "merges": []},
}


def replacing(times: int, content: str) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return {"type": "Sequence", "normalizers": [step] * times, "decoders": [step] * times}


def precompiled(table: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": table}}


def split(pattern: str) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}}


def surrounding(parts: list[dict[str, Any]], token: int = 1) -> dict[str, Any]:
    special = {"u": {"id": "u", "ids": [token], "tokens": ["u"]}}
    whole = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"post_processor": {"type": "TemplateProcessing", "single": parts, "pair": whole, "special_tokens": special}}


TEXT_PART, TOKEN_PART = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "u", "type_id": 0}}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"normalizer": replacing(60, "aa")}, "times as long in its normalizer"),
        ({"normalizer": replacing(2, "a" * 200)}, "times as long"),
        ({"decoder": replacing(60, "aa")}, "times as long in its decoder"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SMALL["decoder"]] * 40}}, "times as long"),
        (surrounding([TEXT_PART] * 1000), "1000 times"),
        (surrounding([TOKEN_PART] * 1000), "0 times among 1000"),
        (precompiled("/////wAA"), "ends before its table"),
        (precompiled("!"), "not base64"),
        (precompiled("AAAAAA=="), "does not work"),
        (precompiled("CAAAAP////////8A"), "does not work"),
        (split("("), "regular expression"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "does not work"),
        ({"model": {"type": "WordPiece", "unk_token": "x", "vocab": {"a": 0}, "continuing_subword_prefix": "##"}}, "x"),
        ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}}, "does not work"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 2**63, "stop": 2**63}}, "decoder"),
        (surrounding([TOKEN_PART, TEXT_PART], token=4_000_000_000), "puts token 4000000000 around"),
        ({"model": {"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []}}, "ids up to 4000000000"),
    ],
)
def test_a_hostile_tokenizer_is_one_sentence(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(SMALL | change))
    with pytest.raises(SourceError, match=word):
        vocab.section(tmp_path, 50)


def test_a_tokenizer_that_nests_without_end_is_one_sentence(tmp_path: Path) -> None:
    deep = '{"type":"Sequence","normalizers":[' * 100_000 + '{"type":"Lowercase"}' + "]}" * 100_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(SMALL)[:-1] + f', "normalizer": {deep}}}')
    with pytest.raises(SourceError, match="nests its normalizer too deeply"):
        Tokenizer.from_folder(tmp_path)


def test_a_text_that_the_tokenizer_fails_on_is_the_requests_error(tmp_path: Path) -> None:
    model = {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(SMALL | {"model": model}))
    with pytest.raises(RequestError, match="cannot encode this text"):
        Tokenizer.from_folder(tmp_path).encode("a" * 40 + "b")


def test_what_cannot_be_encoded_is_the_requests_error(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    with pytest.raises(RequestError):
        tokenizer.encode("a\ud800b")
    with pytest.raises(RequestError):
        tokenizer.decode([-1])
    assert tokenizer.decode([10**6]) == ""


def test_a_special_token_that_is_not_unicode_is_one_sentence(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "\\ud800"}')
    with pytest.raises(SourceError, match="special tokens"):
        Tokenizer.from_folder(tmp_path)
