"""Pre-tokenizers by their GGUF names: how each cuts a text, and who puts BOS before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from precast.errors import SourceError
from precast.quantize.sources.gguf_file import GgufSource
from precast.quantize.sources.pre_tokenizers import PRE_TOKENIZERS
from precast.runtime.text.tokenizer import Tokenizer
from tests.gguf_models import write_llama
from tests.tiny import tiny_llama

TEXT = "I'LL say HelloWorld's x=12345;/\n\n  end"

LLAMA3 = "I|'LL|·say|·HelloWorld|'s|·x|=|123|45|;/¶¶|·|·end"
QWEN2 = LLAMA3.replace("123|45", "1|2|3|4|5")
CASED = "I'LL|·say|·Hello|World's|·x|=|123|45|;/¶¶|·|·end"
GPT2 = "I|'|LL|·say|·HelloWorld|'s|·x|=|12345|;/|¶¶·|·end"
PIECES = {
    "gpt-2": GPT2,
    "smollm": GPT2.replace("12345", "1|2|3|4|5"),
    "llama-bpe": LLAMA3,
    "llama-v3": LLAMA3,
    "llama3": LLAMA3,
    "smaug-bpe": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "gpt-4o": CASED,
    "tekken": "I|'LL|·say|·Hello|World|'s|·x|=|1|2|3|4|5|;/¶¶|·|·end",
}


def test_every_name_is_here() -> None:
    assert PIECES.keys() == PRE_TOKENIZERS.keys()


@pytest.mark.parametrize("name", PIECES)
def test_a_text_is_cut_as_its_tokenizer_cuts_it(name: str) -> None:
    cut = PRE_TOKENIZERS[name].make().pre_tokenize_str(TEXT)
    pieces = [TEXT[begin:end] for _, (begin, end) in cut]
    assert "|".join(pieces).replace(" ", "·").replace("\n", "¶") == PIECES[name]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert "".join(piece for piece, _ in cut) == level.pre_tokenize_str(TEXT)[0][0]


@pytest.mark.parametrize("name", [*PIECES, "deepseek-llm", "default", "bloom"])
def test_a_gguf_names_it(name: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "hf", hidden_size=64, intermediate_size=96, head_dim=32)
    write_llama(tmp_path / "m.gguf", model, **{"tokenizer.ggml.pre": name})
    if name not in PIECES:
        with pytest.raises(SourceError, match=f"'{name}' is not supported; .*gpt-2, smollm, .*deepseek-r1-qwen"):
            GgufSource(tmp_path / "m.gguf")
        return
    GgufSource(tmp_path / "m.gguf").write_side_files(tmp_path)
    ids = Tokenizer.from_folder(tmp_path).encode(TEXT)
    assert Tokenizer.from_folder(tmp_path).decode(ids) == TEXT
    assert (ids[0] == 1) == (name in ("llama-bpe", "llama-v3", "llama3", "smaug-bpe", "tekken"))
