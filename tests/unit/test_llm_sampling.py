"""Penalties, bans, several outputs, echo and prompt log-probabilities through the Python API, beside transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM

from precast import LLM, AsyncLLM, SamplingParams
from precast.errors import RequestError
from precast.plugins.sampling import reference
from tests.steps import make_engine
from tests.tiny import logits_of, tiny_llama
from tests.unit.test_tokenizer import byte_level

PROMPT = "The quick brown fox"
SAMPLED = SamplingParams(max_tokens=8, temperature=1.5, seed=11, ignore_eos=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("llm")
    rust = byte_level()
    model = tiny_llama(folder / "hf", vocab_size=rust.get_vocab_size(with_added_tokens=True))
    rust.save(str(folder / "hf" / "tokenizer.json"))
    model.generation_config.eos_token_id = None  # answers go on to max_new_tokens
    return make_engine(folder / "hf", folder, max_seq_len=128), model


@pytest.fixture(scope="module")
def llm(made: tuple[Path, LlamaForCausalLM]) -> Iterator[LLM]:
    with LLM(made[0]) as llm:
        yield llm


def test_repetition_penalty_and_bad_words_are_those_of_transformers(
    llm: LLM, made: tuple[Path, LlamaForCausalLM]
) -> None:
    ids = llm.encode(PROMPT)
    plain = llm.generate([ids], SamplingParams(max_tokens=16, ignore_eos=True))[0].token_ids
    bad = [[plain[0]], [*plain[1:3]], [ids[-1], plain[3]]]
    config = GenerationConfig(
        max_new_tokens=16, repetition_penalty=1.4, bad_words_ids=bad, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    with torch.no_grad():
        theirs = made[1].generate(torch.tensor([ids]), generation_config=config)[0, len(ids) :].tolist()
    ours = llm.generate([ids], SamplingParams(max_tokens=16, repetition_penalty=1.4, bad_words=bad, ignore_eos=True))
    assert ours[0].token_ids == theirs
    assert theirs != plain


def test_a_bad_word_of_the_text_is_not_written_again(llm: LLM) -> None:
    text = llm.generate(PROMPT, SamplingParams(max_tokens=24, ignore_eos=True))[0]
    word = next(llm.encode([t])[0] for t in text.token_ids)
    output = llm.generate(PROMPT, SamplingParams(max_tokens=24, ignore_eos=True, bad_words=[[word]]))[0]
    assert word in text.token_ids
    assert word not in output.token_ids
    spaced = llm.generate(PROMPT, SamplingParams(max_tokens=4, bad_words="fox"))[0]
    assert spaced.finish_reason is not None


def test_n_outputs_of_a_list_a_stream_and_asyncio_are_the_same(llm: LLM, made: tuple[Path, LlamaForCausalLM]) -> None:
    several = SamplingParams(max_tokens=8, temperature=1.5, seed=11, ignore_eos=True, n=3, logprobs=1)
    answer = llm.generate(PROMPT, several)[0]
    assert [output.index for output in answer.outputs] == [0, 1, 2]
    assert answer.finished
    assert answer.usage.completion_tokens == 24
    assert answer.outputs[0].token_ids == answer.token_ids == llm.generate(PROMPT, SAMPLED)[0].token_ids
    assert len({tuple(output.token_ids) for output in answer.outputs}) == 3
    for output in answer.outputs:
        assert output.logprobs is not None
        total = sum(entry.logprob for entry in output.logprobs if entry is not None)
        assert output.cumulative_logprob == pytest.approx(total)
    texts = ["", "", ""]
    for part in llm.stream(PROMPT, several):
        (output,) = part.outputs
        texts[output.index] += output.text
    assert texts == [output.text for output in answer.outputs]

    async def run() -> list[str]:
        async with AsyncLLM(made[0]) as other:
            (same,) = await other.generate(PROMPT, several)
            return [output.text for output in same.outputs]

    assert asyncio.run(run()) == texts
    assert [output["text"] for output in answer.to_json()["outputs"]] == texts


def test_the_best_of_several_comes_first_and_is_not_streamed(llm: LLM) -> None:
    every = llm.generate(
        PROMPT, SamplingParams(max_tokens=8, temperature=1.5, seed=11, ignore_eos=True, n=6, logprobs=0)
    )
    scores = [output.cumulative_logprob or 0.0 for output in every[0].outputs]
    best = SamplingParams(max_tokens=8, temperature=1.5, seed=11, ignore_eos=True, n=2, best_of=6)
    chosen = llm.generate(PROMPT, best)[0]
    ranked = sorted(range(6), key=lambda i: (-scores[i], i))[:2]
    assert [output.token_ids for output in chosen.outputs] == [every[0].outputs[i].token_ids for i in ranked]
    assert chosen.usage.completion_tokens == 48
    with pytest.raises(RequestError, match="there is no stream"):
        llm.stream(PROMPT, best)
    with pytest.raises(RequestError, match="temperature of 0"):
        llm.generate(PROMPT, SamplingParams(n=2))


def test_a_text_is_scored_as_transformers_scores_it(llm: LLM, made: tuple[Path, LlamaForCausalLM]) -> None:
    ids = llm.encode(PROMPT * 3)
    exact = [reference.log_softmax(row) for row in logits_of(made[1], ids)]
    score = llm.generate([ids], SamplingParams(max_tokens=0, echo=True, logprobs=2))[0]
    assert (score.token_ids, score.finish_reason) == (ids, "length")
    assert score.usage.completion_tokens == 0
    assert score.logprobs is not None
    assert score.logprobs[0] is None
    for i, entry in enumerate(score.logprobs[1:], 1):
        assert entry is not None
        assert entry.token_id == ids[i]
        assert entry.logprob == pytest.approx(exact[i - 1][ids[i]], abs=2e-3)
        assert entry.top[0].token_id == int(np.argmax(exact[i - 1]))
    assert llm.generate([ids], SamplingParams(max_tokens=3, prompt_logprobs=2))[0].prompt_logprobs == score.logprobs


def test_echo_gives_the_prompts_text_before_the_answer(llm: LLM) -> None:
    plain = llm.generate(PROMPT, SAMPLED)[0]
    echoed = SamplingParams(max_tokens=8, temperature=1.5, seed=11, ignore_eos=True, echo=True)
    answer = llm.generate(PROMPT, echoed)[0]
    assert answer.text == PROMPT + plain.text
    assert answer.token_ids == plain.prompt_token_ids + plain.token_ids
    assert "".join(part.text for part in llm.stream(PROMPT, echoed)) == answer.text
    assert llm.generate(PROMPT, SamplingParams(max_tokens=0, echo=True))[0].text == PROMPT


def test_a_stop_text_can_be_kept(llm: LLM) -> None:
    plain = llm.generate(PROMPT, SamplingParams(max_tokens=24, ignore_eos=True))[0]
    stop = next(c for c in plain.text[1:] if c.isascii())
    kept = SamplingParams(max_tokens=24, ignore_eos=True, stop=stop, include_stop_str_in_output=True, logprobs=0)
    answer = llm.generate(PROMPT, kept)[0]
    assert answer.text == plain.text[: plain.text.index(stop) + 1]
    assert answer.token_ids == plain.token_ids[: len(answer.token_ids)]
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    assert "".join(part.text for part in llm.stream(PROMPT, kept)) == answer.text
    token = plain.token_ids[3]
    at = plain.token_ids.index(token)
    ended = SamplingParams(max_tokens=24, ignore_eos=True, stop_token_ids=[token], include_stop_str_in_output=True)
    answer = llm.generate(PROMPT, ended)[0]
    assert (answer.token_ids, answer.stop_reason) == (plain.token_ids[: at + 1], token)
