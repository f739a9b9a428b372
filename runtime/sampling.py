"""How tokens are chosen and when a request ends, as a user writes it, and a model's defaults for it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from precast._native import runtime as native
from precast.errors import EngineError, RequestError

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """None stands for the model's default (its generation_config.json), else for the value named below.

    Of all tokens, ranked by logit (ties: lowest id first), `top_k`, `top_p` and `min_p` keep some, in this order, after
    `temperature`; one of them is drawn. The same seed and prompt give the same tokens, whatever else runs.
    """

    max_tokens: int | None = None
    """Most tokens of the output; 0: none. Default: up to the engine's max_seq_len, where every request ends."""
    temperature: float | None = None
    """0: the most likely token. Default: 1 when top_k, top_p or min_p is given, else 0."""
    top_k: int | None = None
    """Keep the k most likely tokens; 0: all. Default: 0."""
    top_p: float | None = None
    """Keep the fewest most likely tokens whose probabilities reach top_p, above 0 and at most 1. Default: 1."""
    min_p: float | None = None
    """Keep tokens of at least min_p times the highest probability, 0 to 1. Default: 0."""
    seed: int | None = None
    """0 to 2^64 − 1. Default: random; RequestOutput.seed tells it."""
    stop: str | Sequence[str] | None = None
    """Texts that end the output and are not part of it."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end the output and are not part of it, besides the model's end tokens."""
    ignore_eos: bool = False
    """Go on after the model's end tokens."""
    min_tokens: int | None = None
    """Neither a stop token nor a stop text ends the output before. Default: 0."""
    logprobs: int | None = None
    """Log-probabilities of each token and of the n most likely ones, 0 to 64. Default: none."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        """Raises RequestError for a value of the wrong type or out of range."""
        for name, most in (
            ("max_tokens", _INT32_MAX),
            ("top_k", _INT32_MAX),
            ("min_tokens", _INT32_MAX),
            ("logprobs", _INT32_MAX),
            ("seed", 2**64 - 1),
        ):
            _check_whole(name, getattr(self, name), most)
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise RequestError(f"{name} is {value!r}; it must be a number")
            if isinstance(value, int) and value.bit_length() > 64:  # more than a double may hold
                raise RequestError(f"{name} is an integer of {value.bit_length()} bits; it must be a smaller number")
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Sequence):
                raise RequestError(f"{name} is {value!r}; it must be a list")
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        for text in self.stop_strings():
            if not isinstance(text, str):
                raise RequestError(f"stop has {text!r}; it must hold texts")
            if any("\ud800" <= c <= "\udfff" for c in text):
                raise RequestError("a stop string has a lone surrogate, which is not text")
        for token in self.stop_token_ids or ():
            _check_whole("a stop token id", token, _INT32_MAX)
        self.to_native().check()

    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """These parameters, with `defaults` where they are None."""
        absent = {f.name: getattr(defaults, f.name) for f in fields(self) if getattr(self, f.name) is None}
        if self.max_tokens is not None and self.min_tokens is None:
            # A model's default must not make a request invalid that is valid by itself.
            absent["min_tokens"] = min(self.max_tokens, defaults.min_tokens or 0)
        if self.min_tokens is not None and self.max_tokens is None and defaults.max_tokens is not None:
            absent["max_tokens"] = max(self.min_tokens, defaults.max_tokens)
        return replace(self, **absent)

    def to_native(self, stream: bool = True) -> native.SamplingParams:
        """The core's parameters, with the values named above where these are None."""
        out = native.SamplingParams()
        filtered = any(value is not None for value in (self.top_k, self.top_p, self.min_p))
        out.max_tokens = self.max_tokens
        out.temperature = self.temperature if self.temperature is not None else float(filtered)
        out.top_k = self.top_k or 0
        out.top_p = 1.0 if self.top_p is None else self.top_p
        out.min_p = self.min_p or 0.0
        out.seed = self.seed
        out.stop = self.stop_strings()
        out.stop_token_ids = list(self.stop_token_ids or ())
        out.ignore_eos = self.ignore_eos
        out.min_tokens = self.min_tokens or 0
        out.logprobs = self.logprobs
        out.skip_special_tokens = self.skip_special_tokens
        out.stream = stream
        return out


def defaults_of(generation_config: dict[str, Any], where: str) -> SamplingParams:
    """A model's defaults, from its generation_config.json.

    As in transformers, temperature and filters count only with `do_sample`. Raises EngineError for a value that is
    out of range; `where` names the file.
    """
    names = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
    if generation_config.get("do_sample") is True:
        names |= {name: name for name in ("temperature", "top_k", "top_p", "min_p")}
    given = {ours: generation_config[key] for key, ours in names.items() if generation_config.get(key) is not None}
    if generation_config.get("do_sample") is True:
        given.setdefault("temperature", 1.0)
    penalty = generation_config.get("repetition_penalty")
    if penalty not in (None, 1, 1.0):
        warnings.warn(f"{where} asks for repetition_penalty {penalty}, which is not supported yet", stacklevel=2)
    try:
        return SamplingParams(**given)
    except RequestError as error:
        raise EngineError(f"{where}: {error}; correct it, or load with generation_config=False") from None


def _check_whole(name: str, value: Any, most: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {value!r}; it must be a whole number")
    if not 0 <= value <= most:
        raise RequestError(f"{name} is {value}; it must be from 0 to {most}")
