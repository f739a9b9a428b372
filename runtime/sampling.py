"""How tokens are chosen and when a request ends, as a user writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from precast._native import runtime as native
from precast.errors import RequestError
from precast.runtime.checks import INT32_MAX, check_number, check_text, check_whole

_WHOLE = ("max_tokens", "top_k", "min_tokens", "logprobs", "prompt_logprobs", "n", "best_of", "seed")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "echo", "use_beam_search")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """None stands for the model's default (its generation_config.json), else for the default in docs/sampling.md.

    The model's logits go through `logit_bias`, the penalties and the bans (`min_tokens`, `bad_words`), then through
    `temperature`. Of all tokens, ranked by logit (ties: lowest id first), `top_k`, `top_p` and `min_p` keep some, in
    this order; one of them is drawn. The same seed and prompt give the same tokens, whatever else runs. See
    docs/sampling.md.
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
    repetition_penalty: float | None = None
    """Divides the logits above zero of tokens of prompt and output, and multiplies those below; above 0. Default: 1."""
    presence_penalty: float | None = None
    """Is subtracted from the logits of tokens of the output, −2 to 2. Default: 0."""
    frequency_penalty: float | None = None
    """Is subtracted for each time that a token occurs in the output, −2 to 2. Default: 0."""
    logit_bias: Mapping[int, float] | None = None
    """Token id → what is added to its logit, −100 to 100. Default: none."""
    bad_words: str | Sequence[str | Sequence[int]] | None = None
    """Texts, or token sequences, that the output never completes, a beginning in the prompt included. A text counts as
    it is encoded with and without a space before it. Default: none."""
    seed: int | None = None
    """0 to 2^64 − 1. Default: random; RequestOutput.seed tells it."""
    stop: str | Sequence[str] | None = None
    """Texts that end the output and are not part of it."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end the output and are not part of it, besides the model's end tokens."""
    include_stop_str_in_output: bool = False
    """What ends the output, a stop text or a stop token, is part of it."""
    ignore_eos: bool = False
    """Go on after the model's end tokens."""
    min_tokens: int | None = None
    """Neither a stop token nor a stop text ends the output before. Default: 0."""
    logprobs: int | None = None
    """Log-probabilities of each token and of the n most likely ones, 0 to 64. Default: none."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens. Default: with `echo` what `logprobs` says, else none."""
    echo: bool = False
    """The output begins with the prompt."""
    n: int | None = None
    """Outputs, 1 to 128. More than one need a temperature. Default: 1."""
    best_of: int | None = None
    """Sequences, n to 128, of which the n of the highest cumulative_logprob are the outputs. Default: n."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    use_beam_search: bool = False
    """Is refused: there is no beam search."""

    def __post_init__(self) -> None:
        """Raises RequestError for a value of the wrong type or out of range."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        for name, value in given.items():
            if name in _WHOLE:
                check_whole(name, value, 0, 2**64 - 1 if name == "seed" else INT32_MAX)
            if name in _NUMBERS:
                check_number(name, value)
        for name in ("stop", "stop_token_ids", "bad_words"):
            if not isinstance(given.get(name, ()), Sequence):
                raise RequestError(f"{name} is {given[name]!r}; it must be a list")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        if self.use_beam_search:
            raise RequestError("beam search is not supported; use sampling, with n or best_of for several outputs")
        for text in self.stop_strings():
            if not isinstance(text, str):
                raise RequestError(f"stop has {text!r}; it must hold texts")
            check_text("a stop string", text)
        for token in self.stop_token_ids or ():
            check_whole("a stop token id", token, 0, INT32_MAX)
        self._check_logit_bias()
        self._check_bad_words()
        self.to_native().check()

    def _check_logit_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers")
        for token, bias in self.logit_bias.items():
            check_whole("a token id of logit_bias", token, 0, INT32_MAX)
            check_number(f"the logit_bias of token {token}", bias)

    def _check_bad_words(self) -> None:
        for word in self.words():
            if isinstance(word, str):
                check_text("one of bad_words", word)
                if not word:
                    raise RequestError("one of bad_words is empty; remove it")
            elif not isinstance(word, Sequence) or isinstance(word, bytes):
                raise RequestError(f"bad_words has {word!r}; it must hold texts or lists of token ids")
            else:
                for token in word:
                    check_whole("a token id of bad_words", token, 0, INT32_MAX)

    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def words(self) -> list[str | Sequence[int]]:
        """`bad_words` as a list."""
        return [self.bad_words] if isinstance(self.bad_words, str) else list(self.bad_words or ())

    def scores_tokens(self) -> bool:
        """Whether every sampled token has a log-probability."""
        return self.logprobs is not None or (self.best_of or 1) > (self.n or 1)

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """These parameters, with `defaults` where they are None."""
        absent = {f.name: getattr(defaults, f.name) for f in fields(self) if getattr(self, f.name) is None}
        if self.max_tokens is not None and self.min_tokens is None:
            # A model's default must not make a request invalid that is valid by itself.
            absent["min_tokens"] = min(self.max_tokens, defaults.min_tokens or 0)
        if self.min_tokens is not None and self.max_tokens is None and defaults.max_tokens is not None:
            absent["max_tokens"] = max(self.min_tokens, defaults.max_tokens)
        return replace(self, **absent)

    def to_native(self, stream: bool = True, encode: Callable[[str], list[int]] | None = None) -> native.SamplingParams:
        """The core's parameters, with the values named above where these are None.

        `encode` gives the tokens of a text without special tokens; without it, `bad_words` that are texts are left out.
        """
        out = native.SamplingParams()
        filtered = any(value is not None for value in (self.top_k, self.top_p, self.min_p))
        out.max_tokens = self.max_tokens
        out.temperature = self.temperature if self.temperature is not None else float(filtered)
        out.top_k = self.top_k or 0
        out.top_p = 1.0 if self.top_p is None else self.top_p
        out.min_p = self.min_p or 0.0
        out.repetition_penalty = 1.0 if self.repetition_penalty is None else self.repetition_penalty
        out.presence_penalty = self.presence_penalty or 0.0
        out.frequency_penalty = self.frequency_penalty or 0.0
        out.logit_bias = dict(self.logit_bias or {})
        out.bad_words = _sequences(self.words(), encode)
        out.seed = self.seed
        out.stop = self.stop_strings()
        out.stop_token_ids = list(self.stop_token_ids or ())
        out.include_stop_str_in_output = self.include_stop_str_in_output
        out.ignore_eos = self.ignore_eos
        out.min_tokens = self.min_tokens or 0
        out.logprobs = self.logprobs
        out.prompt_logprobs = self.prompt_logprobs
        out.echo = self.echo
        out.n = 1 if self.n is None else self.n
        out.best_of = self.best_of
        out.skip_special_tokens = self.skip_special_tokens
        out.stream = stream
        return out


def _sequences(words: list[str | Sequence[int]], encode: Callable[[str], list[int]] | None) -> list[list[int]]:
    """The token sequences of words; a text also stands for itself behind a space, which has tokens of its own."""
    sequences: list[list[int]] = []
    for word in words:
        if not isinstance(word, str):
            sequences.append([int(token) for token in word])
        elif encode is not None:
            bare = word.lstrip()
            sequences += [encode(bare), encode(" " + bare)] if bare else [encode(word)]
    unique = dict.fromkeys(tuple(sequence) for sequence in sequences)
    return [list(sequence) for sequence in unique]
