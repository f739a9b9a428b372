"""For tokenizers of every kind: what the core streams token by token is the text that the tokenizer makes of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer

from precast._native import runtime
from precast.runtime.text import vocab
from precast.runtime.text.tokenizer import Tokenizer
from tests.unit.test_tokenizer import KINDS

SIZE = 1000
PARTS = [
    "the",
    " ",
    "  ",
    "\n",
    "<s>",
    "</s>",
    "<|im_end|>",
    "<tool>",
    "é",
    "e\u0301",
    "👩‍👩‍👧",
    "中文",
    "مرحبا",
    "\x00",
    "▁",
    "<0x41>",
]
TEXT = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=4)), max_size=12).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, bytes]:
    """A tokenizer and its table of bytes, as an engine has it."""
    folder: Path = tmp_path_factory.mktemp("kind")
    rust: RustTokenizer = KINDS[request.param]()
    rust.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder), vocab.section(folder, SIZE)


@settings(max_examples=150)
@given(text=TEXT, skip=st.booleans(), every=st.integers(1, 3))
@example(text="", skip=True, every=1)
@example(text="  two <s> the</s>  ", skip=False, every=1)
def test_the_pieces_of_a_stream_are_the_whole(made: tuple[Tokenizer, bytes], text: str, skip: bool, every: int) -> None:
    tokenizer, section = made
    ids = tokenizer.encode(text)
    stream = runtime.Detokenizer(runtime.VocabBytes.from_bytes(section), skip_special_tokens=skip, at_start=True)
    pieces = []
    for count, token in enumerate(ids):
        stream.push(token)
        if count % every == 0:
            pieces.append(stream.release(False)[0])
    pieces.append(stream.release(True)[0])
    assert "".join(pieces) == tokenizer.decode(ids, skip)
