"""What comes back for a request."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from precast._native import runtime as native

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Logprob:
    """A token and its natural log-probability, in the model's own distribution (before temperature and filters)."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs:
    """A token of the output, with the most likely tokens of its position, best first."""

    token_id: int
    logprob: float
    top: list[Logprob]


@dataclass(frozen=True)
class Usage:
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens sampled so far, with the stop token and what a stop string cut off."""
    cached_tokens: int
    """Prompt tokens that were not computed again."""


@dataclass(frozen=True)
class Timings:
    """Seconds since the request was submitted, of events so far (0: not yet)."""

    queue: float
    """Until it was admitted."""
    first_token: float
    total: float
    """Until this output."""


@dataclass(frozen=True)
class RequestOutput:
    """A request's output; from a stream, what is new of it: texts, ids and logprobs concatenate to the whole."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    """None: more follows. `stop`: a stop token or text; `length`: max_tokens or max_seq_len; `error`: see `error`."""
    stop_reason: str | int | None
    """The stop string or the id of the stop token that ended it."""
    error: str | None
    logprobs: list[TokenLogprobs] | None
    """As many as token_ids, when asked for."""
    prompt_token_ids: list[int]
    usage: Usage
    seed: int
    timings: Timings

    @classmethod
    def of(cls, delta: native.OutputDelta, prompt_token_ids: list[int], with_logprobs: bool) -> RequestOutput:
        """From what the core delivered."""
        ids = delta.token_ids
        logprobs = [
            TokenLogprobs(token, entry.logprob, [Logprob(t.token, t.logprob) for t in entry.top])
            for token, entry in zip(ids, delta.logprobs, strict=with_logprobs)
        ]
        return cls(
            text=delta.text,
            token_ids=ids,
            finish_reason=delta.finish_reason,  # type: ignore[arg-type]
            stop_reason=delta.stop_string if delta.stop_string is not None else delta.stop_token,
            error=delta.error or None,
            logprobs=logprobs if with_logprobs else None,
            prompt_token_ids=prompt_token_ids,
            usage=Usage(delta.prompt_tokens, delta.completion_tokens, delta.cached_tokens),
            seed=delta.seed,
            timings=Timings(delta.queue_seconds, delta.first_token_seconds, delta.total_seconds),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`; without the prompt's ids."""
        value = asdict(self)
        del value["prompt_token_ids"]
        return {key: item for key, item in value.items() if item is not None or key == "finish_reason"}

    def stats_line(self) -> str:
        """Time to first token, and tokens per second after it, of a finished output: one line."""
        tokens, timings = self.usage.completion_tokens, self.timings
        line = f"{self.usage.prompt_tokens} prompt tokens, first token after {timings.first_token * 1000:.0f} ms"
        if tokens > 1 and timings.total > timings.first_token:
            line += f", {tokens} tokens, {(tokens - 1) / (timings.total - timings.first_token):.1f} tokens/s"
        return line
