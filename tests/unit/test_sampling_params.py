"""Sampling parameters: refused early, completed by the model's generation_config.json."""

from __future__ import annotations

import math
from typing import Any

import pytest

from precast import SamplingParams
from precast.errors import EngineError, RequestError
from precast.runtime.generation_config import defaults_of


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_tokens": -1}, "max_tokens is -1; it must be from 0"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"max_tokens": 2**31}, "max_tokens is 2147483648"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens is 4 and max_tokens 3"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_p": 0}, "top_p is 0; it must be above 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": 2}, "min_p is 2"),
        ({"top_k": -1}, "top_k is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is"),
        ({"stop": [""]}, "a stop string is empty"),
        ({"stop": [3]}, "stop has 3"),
        ({"stop": 5}, "stop is 5; it must be a list"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; it must be a list"),
        ({"temperature": 10**400}, "temperature is an integer of 1329 bits"),
        ({"stop": "\ud800"}, "surrogate"),
        ({"stop": ["x"] * 65}, "65 stop strings"),
        ({"stop_token_ids": [1.5]}, "a stop token id is 1.5"),
        ({"stop_token_ids": [None]}, "a stop token id is None"),
        ({"logprobs": 65}, "logprobs is 65"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output is 'yes'"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be above 0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; it must be from -2 to 2"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"frequency_penalty": "1"}, "frequency_penalty is '1'; it must be a number"),
        ({"logit_bias": [1]}, "logit_bias is [1]; it must map"),
        ({"logit_bias": {"1": 2}}, "a token id of logit_bias is '1'"),
        ({"logit_bias": {1: 101}}, "the logit_bias of token 1 is 101; it must be from -100 to 100"),
        ({"logit_bias": {1: None}}, "the logit_bias of token 1 is None; it must be a number"),
        ({"bad_words": [""]}, "one of bad_words is empty"),
        ({"bad_words": [[]]}, "one of bad_words is empty"),
        ({"bad_words": [[1, -2]]}, "a token id of bad_words is -2"),
        ({"bad_words": [7]}, "bad_words has 7; it must hold texts or lists of token ids"),
        ({"bad_words": [[i] for i in range(1025)]}, "bad_words has 1025 token sequences"),
        ({"bad_words": ["\udc00"]}, "one of bad_words has a lone surrogate"),
        ({"use_beam_search": True}, "beam search is not supported"),
    ],
)
def test_bad_values_are_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(**given)
    assert sentence in str(error.value)


def test_without_anything_the_most_likely_token_is_taken() -> None:
    assert SamplingParams().to_native().temperature == 0
    assert SamplingParams(top_p=0.9).to_native().temperature == 1
    assert SamplingParams(top_p=0.9, temperature=0.0).to_native().temperature == 0


def test_a_generation_config_counts_with_do_sample_and_what_is_given_wins() -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": [1, 2], "transformers_version": "5"}
    assert defaults_of(config, "here") == SamplingParams()
    sampled = defaults_of(config | {"do_sample": True, "max_new_tokens": 7}, "here")
    assert sampled == SamplingParams(temperature=0.6, top_p=0.9, top_k=20, max_tokens=7)
    assert SamplingParams(temperature=0.0, seed=3).over(sampled).to_native().temperature == 0
    assert SamplingParams(top_k=0).over(sampled) == SamplingParams(temperature=0.6, top_p=0.9, top_k=0, max_tokens=7)
    assert defaults_of({"do_sample": True}, "here").temperature == 1


def test_defaults_never_make_a_valid_request_invalid() -> None:
    defaults = SamplingParams(max_tokens=10, min_tokens=8)
    assert SamplingParams(max_tokens=3).over(defaults).min_tokens == 3
    assert SamplingParams(min_tokens=20).over(defaults).max_tokens == 20


def test_a_bad_generation_config_is_the_engines_fault() -> None:
    with pytest.raises(EngineError, match="here: top_p is 3"):
        defaults_of({"do_sample": True, "top_p": 3}, "here")
    with pytest.raises(EngineError, match="here: do_sample must be true or false, not 'yes'"):
        defaults_of({"do_sample": "yes"}, "here")


def test_a_generation_config_bans_and_penalizes_whether_it_samples_or_not() -> None:
    config = {"repetition_penalty": 1.05, "bad_words_ids": [[5, 6], [2]], "suppress_tokens": [9], "eos_token_id": 2}
    assert defaults_of(config, "here") == SamplingParams(repetition_penalty=1.05, bad_words=[[5, 6], [9]])
    assert SamplingParams(bad_words=[]).over(defaults_of(config, "here")).to_native().bad_words == []
    with pytest.raises(EngineError, match="here: suppress_tokens is 3; it must be a list"):
        defaults_of({"suppress_tokens": 3}, "here")


@pytest.mark.parametrize(
    ("setting", "value"), [("num_beams", 4), ("forced_eos_token_id", 2), ("begin_suppress_tokens", [1])]
)
def test_a_setting_that_would_change_the_answer_and_is_not_supported_warns(setting: str, value: Any) -> None:
    with pytest.warns(UserWarning, match=f"here asks for {setting} .* not supported and ignored"):
        assert defaults_of({setting: value}, "here") == SamplingParams()


@pytest.mark.filterwarnings("error")
def test_settings_that_change_nothing_do_not_warn() -> None:
    defaults_of({"num_beams": 1, "no_repeat_ngram_size": 0, "typical_p": 0.5}, "here")
    with pytest.raises(UserWarning, match="typical_p"):
        defaults_of({"typical_p": 0.5, "do_sample": True}, "here")


def test_bad_words_are_encoded_with_and_without_a_space_before_them() -> None:
    def encode(text: str) -> list[int]:
        return [ord(c) for c in text]

    native = SamplingParams(bad_words=["ab", " ab", [1, 2], " "]).to_native(encode=encode)
    assert native.bad_words == [[97, 98], [32, 97, 98], [1, 2], [32]]
