"""Real tokenizers: ids and text are transformers', and the bytes of tokens give that text.

Needs folders of tokenizers: `tests/parity/fetch_tokenizers.sh OUT` fetches public ones; folders of models do as well.
Without them tests/unit/test_tokenizer.py checks the same on tokenizers of every kind that it trains.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from precast.quantize.sources.gguf_tokenizer import tokenizer_files
from precast.runtime.text import vocab
from precast.runtime.text.tokenizer import Tokenizer
from tests.unit.test_tokenizer import TEXTS

ROOT = os.environ.get("PRECAST_TOKENIZERS")
FOLDERS = sorted(path.parent for path in Path(ROOT).glob("*/tokenizer.json")) if ROOT else []
HERE = Path(__file__).parents[2]
SOURCES = ("README.md", "runtime/session.py", "runtime/core/utf8.cpp")

CORPUS = (
    *TEXTS,
    "你好,世界。今天天气很好，我们去公园玩吧！\u3000１２３",
    "مرحبا بالعالم، كيف حالك اليوم؟ ١٢٣ ﷽",
    "नमस्ते दुनिया สวัสดีชาวโลก Ünïcödé ǅ ß ẞ ı İ",
    "🇩🇪✌🏽👩‍👩‍👧🏳️‍🌈 x",
    "".join(map(chr, range(1, 0xA0))),
    "\u2028\u2029\u200b\ud7ff\ue000\U0010ffff",
    "1234567890 3.14159 1,000,000 0xFF 2²",
    "don't I'LL they've rock'n'roll ''''",
    "   a    b\t\tc\r\n\r\n d \n \n",
    "<s>a</s> <unk> <pad><mask>  <s>  x  </s>  ",
    "▁x ▁ ▁▁ _",
    *(part for name in SOURCES for part in (HERE / name).read_text()[:8000].split("\n\n")),
)


def theirs(folder: Path) -> Any:
    """transformers' tokenizer of the folder's tokenizer.json.

    AutoTokenizer, but where the config says LlamaTokenizer: transformers 5 builds that class without the file's
    normalizer and pre-tokenizer, which is wrong for DeepSeek (its own list of wrong classes says so)
    and differs from sentencepiece, and from transformers 4, in texts that begin with a space.
    """
    config = json.loads((folder / "tokenizer_config.json").read_text())
    wrong = str(config.get("tokenizer_class")).removesuffix("Fast") == "LlamaTokenizer"
    return (PreTrainedTokenizerFast if wrong else AutoTokenizer).from_pretrained(folder)


@pytest.mark.skipif(not ROOT, reason="set PRECAST_TOKENIZERS to what tests/parity/fetch_tokenizers.sh makes")
def test_there_are_real_tokenizers() -> None:
    """Who names a folder of tokenizers wants them tested: an empty one must not pass as skipped tests."""
    assert FOLDERS, f"PRECAST_TOKENIZERS = {ROOT} holds no folder with a tokenizer.json"


@pytest.mark.skipif(not FOLDERS, reason="set PRECAST_TOKENIZERS to what tests/parity/fetch_tokenizers.sh makes")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_real_tokenizer_is_transformers(folder: Path) -> None:
    ours, original = Tokenizer.from_folder(folder), theirs(folder)
    special = [token.content for token in ours.rust.get_added_tokens_decoder().values()]
    table = vocab.read_vocab(folder, ours.vocab_size + 1000, ours)
    assert vocab.section(folder, ours.vocab_size + 1000)
    for text in (*CORPUS, *(f"x {token} y{token}z" for token in special[:300]), "".join(special[:50])):
        for surround in (True, False):
            ids = ours.encode(text, surround)
            assert ids == original(text, add_special_tokens=surround)["input_ids"], text
            for skip in (True, False):
                assert ours.decode(ids, skip) == original.decode(ids, skip_special_tokens=skip) == table.text(ids, skip)
    assert (ours.bos_token_id, ours.eos_token_id) == (original.bos_token_id, original.eos_token_id)


GGUF_NAMES = {"qwen3": "qwen2", "llama3": "llama-bpe", "llama3_1": "llama-bpe", "gptoss": "gpt-4o"}
"""Folders of fetch_tokenizers.sh → the pre-tokenizer that a GGUF file of theirs names."""


def gguf_fields(folder: Path, pre: str) -> dict[str, Any]:
    """The tokenizer's fields as llama.cpp's converter writes them."""
    written = json.loads((folder / "tokenizer.json").read_text())
    tokens = {index: (token, 1) for token, index in written["model"]["vocab"].items()}
    tokens |= {token["id"]: (token["content"], 3 if token["special"] else 4) for token in written["added_tokens"]}
    listed = [tokens.get(index, (f"[PAD{index}]", 5)) for index in range(max(tokens) + 1)]
    fields: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in listed],
        "tokenizer.ggml.token_type": [kind for _, kind in listed],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in written["model"]["merges"]],
    }
    tokenizer = Tokenizer.from_folder(folder)
    if (bos := tokenizer.bos_token_id) is not None:
        fields["tokenizer.ggml.bos_token_id"] = bos
        fields["tokenizer.ggml.add_bos_token"] = tokenizer.encode("x")[0] == bos
    return fields


@pytest.mark.skipif(not FOLDERS, reason="set PRECAST_TOKENIZERS to what tests/parity/fetch_tokenizers.sh makes")
@pytest.mark.parametrize("folder", [f for f in FOLDERS if f.name in GGUF_NAMES], ids=lambda folder: folder.name)
def test_a_gguf_of_a_real_tokenizer_gives_its_ids(folder: Path, tmp_path: Path) -> None:
    fields = gguf_fields(folder, GGUF_NAMES[folder.name])
    for name, content in tokenizer_files(fields, {"max_position_embeddings": 4096}, "fields").items():
        (tmp_path / name).write_text(json.dumps(content))
    original, rebuilt = Tokenizer.from_folder(folder), Tokenizer.from_folder(tmp_path)
    special = [token.content for token in original.rust.get_added_tokens_decoder().values()]
    for text in (*CORPUS, *(f"x {token} y{token}z" for token in special[:300])):
        for surround in (True, False):
            assert rebuilt.encode(text, surround) == original.encode(text, surround), text
