"""Sampling parameters: refused early, completed by the model's generation_config.json."""

from __future__ import annotations

import math
from typing import Any

import pytest

from precast import SamplingParams
from precast.errors import EngineError, RequestError
from precast.runtime.sampling import defaults_of


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
        ({"logprobs": 65}, "logprobs is 65"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
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
    with pytest.warns(UserWarning, match="repetition_penalty"):
        defaults_of({"repetition_penalty": 1.1}, "here")
