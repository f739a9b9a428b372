"""What comes back for a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from precast._native import runtime as native
from precast.runtime.sampling import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


@dataclass(slots=True)
class Logprob:
    """A token and its natural log-probability, in the model's own distribution (before temperature and filters)."""

    token_id: int
    logprob: float


@dataclass(slots=True)
class TokenLogprobs:
    """A token of output or prompt, with the most likely tokens of its position, best first."""

    token_id: int
    logprob: float
    top: list[Logprob]


@dataclass(slots=True)
class Usage:
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens sampled so far for all outputs, with stop tokens, what stop strings cut off, and what best_of dropped."""
    cached_tokens: int
    """Prompt tokens that were not computed again."""


@dataclass(slots=True)
class Timings:
    """Seconds since the request was submitted, of events so far (0: not yet)."""

    queue: float
    """Until it was admitted."""
    first_token: float
    total: float
    """Until this output."""


@dataclass(slots=True)
class CompletionOutput:
    """One output of a request; from a stream, what is new of it. Texts, ids and logprobs concatenate to the whole."""

    index: int
    """Which of the n outputs; with best_of its rank, 0 the best."""
    text: str
    token_ids: list[int]
    """With `echo`, the prompt's come first."""
    finish_reason: FinishReason | None
    """None: more follows. `stop`: a stop token or text; `length`: max_tokens or max_seq_len; `error`: see `error`."""
    stop_reason: str | int | None
    """The stop string or the id of the stop token that ended it."""
    error: str | None
    logprobs: list[TokenLogprobs | None] | None
    """As many as token_ids, when asked for. None for the first token of an echoed prompt, which nothing precedes."""
    cumulative_logprob: float | None
    """The sum over all tokens sampled so far, a stop token and what a stop string cut off included; when `logprobs` or
    `best_of` ask for it."""
    token_latencies: list[float]
    """Seconds, one for each sampled token of token_ids: from the token before it, inter-token latencies; the output's
    first: from the request's submission."""


@dataclass(slots=True)
class RequestOutput:
    """What a request answers; from a stream, what is new of it: of one output at a time."""

    outputs: list[CompletionOutput]
    """By index."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None
    """As many as prompt_token_ids, the first None, when asked for; in a stream, with the first part of each output."""
    usage: Usage
    seed: int
    timings: Timings
    num_preemptions: int
    """How often an output was paused for want of KV pages, and computed again later; of all outputs."""
    finished: bool
    """Nothing follows, of any output."""

    @classmethod
    def of(
        cls, deltas: Sequence[native.OutputDelta], prompt_token_ids: list[int], params: SamplingParams
    ) -> RequestOutput:
        """From what the core delivered: one delta of a stream, or the last deltas of all outputs."""
        last = deltas[-1]
        scored: list[TokenLogprobs | None] | None = None
        if (entries := deltas[0].prompt_logprobs) is not None:
            scored = [None, *_logprobs(prompt_token_ids[1:], entries)]
        return cls(
            outputs=[_completion(delta, scored, params) for delta in deltas],
            prompt_token_ids=prompt_token_ids,
            prompt_logprobs=scored,
            usage=Usage(last.prompt_tokens, last.completion_tokens, last.cached_tokens),
            seed=last.seed,
            timings=_timings(deltas),
            num_preemptions=last.num_preemptions,
            finished=last.finished,
        )

    @property
    def text(self) -> str:
        """Of the first of `outputs`, as are all of the following."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> list[TokenLogprobs | None] | None:
        return self.outputs[0].logprobs

    @property
    def cumulative_logprob(self) -> float | None:
        return self.outputs[0].cumulative_logprob

    @property
    def error(self) -> str | None:
        """Of the first output that failed."""
        return next((output.error for output in self.outputs if output.error is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`; without the prompt's ids. One output is not put into a list."""
        value = asdict(self)
        del value["prompt_token_ids"], value["finished"]
        for output in value["outputs"]:
            output["token_latencies"] = [round(seconds, 6) for seconds in output["token_latencies"]]
        outputs = [
            {key: item for key, item in output.items() if item is not None or key == "finish_reason"}
            for output in value.pop("outputs")
        ]
        if len(outputs) == 1:
            del outputs[0]["index"]
            value = outputs[0] | value
        else:
            value = {"outputs": outputs} | value
        return {key: item for key, item in value.items() if item is not None or key == "finish_reason"}

    def stats_line(self) -> str:
        """Time to first token, and tokens per second after it, of a finished output: one line."""
        tokens, timings = self.usage.completion_tokens, self.timings
        line = f"{self.usage.prompt_tokens} prompt tokens, first token after {timings.first_token * 1000:.0f} ms"
        if tokens > 1 and timings.total > timings.first_token:
            line += f", {tokens} tokens, {(tokens - 1) / (timings.total - timings.first_token):.1f} tokens/s"
        return line


def _timings(deltas: Sequence[native.OutputDelta]) -> Timings:
    if len(deltas) == 1:  # a stream's every token comes here
        return Timings(deltas[0].queue_seconds, deltas[0].first_token_seconds, deltas[0].total_seconds)
    return Timings(
        min(delta.queue_seconds for delta in deltas),
        min((delta.first_token_seconds for delta in deltas if delta.first_token_seconds > 0), default=0.0),
        max(delta.total_seconds for delta in deltas),
    )


def _completion(
    delta: native.OutputDelta, scored: list[TokenLogprobs | None] | None, params: SamplingParams
) -> CompletionOutput:
    logprobs: list[TokenLogprobs | None] | None = None
    if params.logprobs is not None:
        sampled = delta.token_ids[delta.num_echoed :]
        echoed = (scored or [None] * delta.num_echoed) if delta.num_echoed else []
        logprobs = [*echoed, *_logprobs(sampled, delta.logprobs)]
    return CompletionOutput(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        finish_reason=delta.finish_reason,  # type: ignore[arg-type]
        stop_reason=delta.stop_string if delta.stop_string is not None else delta.stop_token,
        error=delta.error or None,
        logprobs=logprobs,
        cumulative_logprob=delta.cumulative_logprob if params.scores_tokens() else None,
        token_latencies=delta.token_latencies,
    )


def _logprobs(tokens: list[int], entries: Sequence[native.TokenLogprobs]) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(token, entry.logprob, [Logprob(t.token, t.logprob) for t in entry.top])
        for token, entry in zip(tokens, entries, strict=True)
    ]
