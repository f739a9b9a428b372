"""Faults of sampling that users of language model engines have reported, each kind as one test."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast import LLM, SamplingParams
from precast.errors import RequestError
from tests.steps import make_engine
from tests.tiny import tiny_llama
from tests.unit.test_tokenizer import byte_level

PROMPTS = ["The quick brown fox", "1 2 3 4 5", "é中文 🙂"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampling")
    rust = byte_level()
    tiny_llama(folder / "hf", vocab_size=rust.get_vocab_size(with_added_tokens=True))
    rust.save(str(folder / "hf" / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Path:
    return make_engine(folder / "hf", folder, max_seq_len=128)


@pytest.fixture(scope="module")
def llm(engine: Path) -> Iterator[LLM]:
    with LLM(engine) as llm:
        yield llm


def test_without_a_seed_answers_differ_and_the_seed_that_is_told_repeats_them(llm: LLM) -> None:
    """The seed was fixed: everybody got the same "random" answer."""
    sampled = SamplingParams(max_tokens=16, temperature=1.5, ignore_eos=True)
    one, two = (llm.generate(PROMPTS[0], sampled)[0] for _ in range(2))
    assert one.token_ids != two.token_ids
    again = SamplingParams(max_tokens=16, temperature=1.5, ignore_eos=True, seed=one.seed)
    assert llm.generate(PROMPTS[0], again)[0].token_ids == one.token_ids


def test_the_outputs_of_n_differ(llm: LLM) -> None:
    """All n outputs of a seeded request were the same."""
    several = SamplingParams(max_tokens=16, temperature=1.5, ignore_eos=True, seed=1, n=8)
    assert len({tuple(output.token_ids) for output in llm.generate(PROMPTS[0], several)[0].outputs}) == 8


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-6, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy_and_no_nan(llm: LLM, temperature: float) -> None:
    """Logits divided by a tiny temperature were infinite, their softmax NaN."""
    greedy = llm.generate(PROMPTS, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    tiny = llm.generate(PROMPTS, SamplingParams(max_tokens=8, temperature=temperature, ignore_eos=True, logprobs=1))
    assert [output.token_ids for output in tiny] == [output.token_ids for output in greedy]
    for output in tiny:
        assert all(entry is not None and math.isfinite(entry.logprob) for entry in output.logprobs or ())


def test_penalties_do_not_depend_on_who_else_runs(llm: LLM) -> None:
    """Penalties were applied to the row of another request when the order of the batch changed."""
    every = [
        SamplingParams(
            max_tokens=6 + 9 * i,
            ignore_eos=True,
            repetition_penalty=(1.0, 1.5, 0.8)[i],
            presence_penalty=(2.0, 0.0, -1.0)[i],
            frequency_penalty=(0.0, 1.0, 0.5)[i],
            logprobs=2,
        )
        for i in range(3)
    ]
    alone = [llm.generate([p], s)[0] for p, s in zip(PROMPTS, every, strict=True)]
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        together = llm.generate([PROMPTS[i] for i in order], [every[i] for i in order])
        for i, output in zip(order, together, strict=True):
            assert (output.token_ids, output.logprobs) == (alone[i].token_ids, alone[i].logprobs)


def test_parameters_that_contradict_each_other_are_refused(llm: LLM) -> None:
    """They were taken, and one of them silently won."""
    for given in (
        {"n": 2, "temperature": 0.0},
        {"n": 3, "best_of": 2, "temperature": 1.0},
        {"min_tokens": 4, "max_tokens": 3},
        {"use_beam_search": True},
    ):
        with pytest.raises(RequestError):
            llm.generate(PROMPTS[0], SamplingParams(**given))  # type: ignore[arg-type]


def test_an_echo_without_new_tokens_is_the_prompt_with_its_logprobs(llm: LLM) -> None:
    """max_tokens=0 with echo was an error, or gave a token."""
    output = llm.generate(PROMPTS[0], SamplingParams(max_tokens=0, echo=True, logprobs=1))[0]
    assert (output.text, output.usage.completion_tokens, output.finish_reason) == (PROMPTS[0], 0, "length")
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids) == output.usage.prompt_tokens


def test_logprobs_of_banned_tokens_are_finite_json(llm: LLM) -> None:
    """A banned token had a log-probability of −inf, which is no JSON: the answer was a server error."""
    top = llm.generate(PROMPTS[0], SamplingParams(max_tokens=1, logprobs=3))[0].logprobs
    assert top is not None
    assert top[0] is not None
    banned = SamplingParams(
        max_tokens=4,
        bad_words=[[top[0].token_id]],
        logit_bias={top[0].top[1].token_id: -100},
        logprobs=3,
        ignore_eos=True,
    )
    output = llm.generate(PROMPTS[0], banned)[0]
    json.dumps(output.to_json(), allow_nan=False)
    assert output.logprobs is not None
    assert output.logprobs[0] is not None
    assert output.logprobs[0].top == top[0].top  # the model's own opinion
    assert top[0].token_id not in output.token_ids


def test_min_tokens_holds_for_every_end_token(folder: Path) -> None:
    """Of several end tokens, min_tokens banned the first."""
    model = folder / "ends"
    rust = byte_level()
    tiny_llama(model, vocab_size=rust.get_vocab_size(with_added_tokens=True))
    rust.save(str(model / "tokenizer.json"))
    with LLM(make_engine(model, folder / "ends_made", max_seq_len=128)) as llm:
        answer = llm.generate(PROMPTS[0], SamplingParams(max_tokens=12, ignore_eos=True))[0].token_ids
    ends = sorted(set(answer[:6]))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    with LLM(make_engine(model, folder / "ends_again", max_seq_len=128)) as llm:
        assert llm.generate(PROMPTS[0], SamplingParams(max_tokens=12))[0].token_ids == []
        output = llm.generate(PROMPTS[0], SamplingParams(max_tokens=12, min_tokens=9))[0]
    assert len(output.token_ids) >= 9
    assert not set(output.token_ids) & set(ends)
