"""One prompt or many, one set of parameters or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from precast.errors import RequestError
from precast.runtime.request_options import RequestOptions
from precast.runtime.sampling import SamplingParams
from precast.runtime.session import Prompt, is_messages, is_token_ids


def as_list(prompts: Any) -> list[Any]:
    """One prompt or a list of prompts, as a list."""
    if isinstance(prompts, str) or is_messages(prompts):
        return [prompts]
    if is_token_ids(prompts) and len(prompts) > 0:
        return [prompts]
    return list(prompts)


def params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams | None]:
    """The parameters of each prompt. Raises RequestError when their numbers differ."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * len(prompts)
    if len(params) != len(prompts):
        raise RequestError(
            f"there are {len(prompts)} prompts and {len(params)} params; give one for each, or one for all"
        )
    return params


def options_for(
    prompts: Sequence[Prompt], options: RequestOptions | Sequence[RequestOptions] | None
) -> Sequence[RequestOptions]:
    """The options of each prompt. Raises RequestError when their numbers differ."""
    if options is None or isinstance(options, RequestOptions):
        return [options or RequestOptions()] * len(prompts)
    if len(options) != len(prompts):
        raise RequestError(
            f"there are {len(prompts)} prompts and {len(options)} options; give one for each, or one for all"
        )
    return options


def named(error: RequestError, index: int, count: int) -> RequestError:
    """The error with the number of its prompt, when there are several."""
    return error if count == 1 else RequestError(f"prompt {index}: {error}")
