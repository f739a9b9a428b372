"""Faults of text in and out that users of language model engines have reported, each kind as one test.

On an engine with a sentencepiece tokenizer that puts BOS before every text, as Llama 2's: the kind that they met most.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from precast import LLM, SamplingParams
from precast.errors import RequestError
from tests.steps import make_engine
from tests.tiny import tiny_llama
from tests.unit.test_tokenizer import TEXTS, sentencepiece

MAX_SEQ_LEN = 64
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'tool' %}{{ raise_exception('tools are not known here') }}{% endif %}
{% if loop.index0 % 2 == 1 and message.role != 'assistant' %}{{ raise_exception('roles must alternate') }}{% endif %}
[{{ message.role }}] {{ message.content | trim }}{{ eos_token if message.role == 'assistant' }}
{% endfor %}"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    rust = sentencepiece(True)
    tiny_llama(folder / "hf", vocab_size=rust.get_vocab_size(with_added_tokens=True))
    rust.save(str(folder / "hf" / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}
    (folder / "hf" / "tokenizer_config.json").write_text(json.dumps(config))
    return make_engine(folder / "hf", folder, max_seq_len=MAX_SEQ_LEN)


@pytest.fixture(scope="module")
def llm(engine: Path) -> Iterator[LLM]:
    with LLM(engine) as llm:
        yield llm


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]


def test_a_chat_has_one_bos_and_a_text_has_one_bos(llm: LLM) -> None:
    """The template writes BOS and the tokenizer adds one: answers got worse, and nothing said why."""
    for prompt in ("the dog", chat("the dog"), chat("a", "b", "c")):
        assert llm.encode(prompt).count(1) == 1


def test_ids_of_chats_and_texts_are_transformers(llm: LLM, engine: Path) -> None:
    """Text after special tokens got a space that transformers does not give it, or none that it does."""
    theirs = AutoTokenizer.from_pretrained(engine)
    for text in (*TEXTS, "<s>the</s> the<s>  the", "</s></s>the"):
        assert llm.encode(text) == theirs(text)["input_ids"]
        expected = theirs.apply_chat_template(chat(text, text), add_generation_prompt=True, return_dict=False)
        assert llm.encode(chat(text, text)) == expected


def test_the_templates_own_refusal_is_the_error(llm: LLM) -> None:
    """raise_exception was swallowed, and the model answered half a prompt."""
    with pytest.raises(RequestError, match="tools are not known here"):
        llm.chat([{"role": "tool", "content": "x"}], GREEDY)
    with pytest.raises(RequestError, match="roles must alternate"):
        llm.chat([{"role": "user", "content": "x"}] * 2, GREEDY)


def test_a_model_without_a_template_is_not_given_another(engine: Path, tmp_path: Path) -> None:
    """A built-in template stood in for one that was missing: the wrong prompt, silently."""
    for path in engine.iterdir():
        if path.name != "tokenizer_config.json":
            (tmp_path / path.name).symlink_to(path)
    config = json.loads((engine / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with LLM(tmp_path) as llm, pytest.raises(RequestError, match="no chat template"):
        llm.chat(chat("x"), GREEDY)


def test_a_stream_keeps_spaces_and_whole_characters(llm: LLM) -> None:
    """Pieces decoded one by one lose the spaces between words, and tear characters that take several tokens."""
    num_pieces = 0
    for seed in range(1000):
        params = SamplingParams(max_tokens=200, temperature=1, seed=seed, ignore_eos=True)
        whole = llm.generate("the dog", params)[0]
        pieces = [part.text for part in llm.stream("the dog", params)]
        assert "".join(pieces) == whole.text
        num_pieces += len(pieces)
        if seed >= 7 and num_pieces > seed + 1:  # what comes while nobody reads is one piece
            return
    raise AssertionError("every stream was one piece")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_text_at_the_limit_is_answered_or_refused_alone(llm: LLM, more: int) -> None:
    """A prompt of the maximal length stopped the loop, or ended in an assertion inside the engine."""
    text = "a" * (MAX_SEQ_LEN - len(llm.encode("a")) + more)  # with BOS and what stands for the space, this many tokens
    assert len(llm.encode(text)) == MAX_SEQ_LEN - 1 + more
    other = llm.stream("the dog", GREEDY)
    if more < 0 or more == 0:
        assert len(llm.generate(text, GREEDY)[0].token_ids) == 1 - more
    else:
        with pytest.raises(RequestError, match=str(MAX_SEQ_LEN)):
            llm.generate(text, GREEDY)
    assert sum(len(part.token_ids) for part in other) == 8


@pytest.mark.parametrize("prompt", ["a\ud800b", [{"role": "user", "content": "\udfff"}], [], [10**9], [-1]])
def test_what_is_no_text_is_refused_and_others_go_on(llm: LLM, prompt: Any) -> None:
    """A request with a broken character, no token, or a token of another model took the server down."""
    expected = llm.generate("the dog", GREEDY)[0].text
    with pytest.raises(RequestError):
        llm.generate([prompt] if prompt == [] else prompt, GREEDY)
    assert llm.generate("the dog", GREEDY)[0].text == expected


def test_an_empty_text_is_its_bos(llm: LLM) -> None:
    """An empty prompt ended the server; here it is what the tokenizer makes of it: BOS."""
    assert llm.encode("") == [1]
    assert len(llm.generate("", GREEDY)[0].token_ids) == 8
