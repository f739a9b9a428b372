"""One prompt or many, one set of parameters or one for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def with_their_own(
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    options: RequestOptions | Sequence[RequestOptions] | None,
) -> list[tuple[Prompt, SamplingParams | None, RequestOptions]]:
    """(prompt, parameters, options) of each prompt; either of these is given for all, or one for each.

    Raises RequestError when their numbers differ, and for what is something else.
    """
    count = len(prompts)
    every = _each(params, count, "params", SamplingParams), _each(options, count, "options", RequestOptions)
    return [(prompt, own, wanted or RequestOptions()) for prompt, own, wanted in zip(prompts, *every, strict=True)]


def _each(given: Any, count: int, what: str, kind: type) -> Sequence[Any]:
    if given is None or isinstance(given, kind):
        return [given] * count
    if not isinstance(given, Sequence) or not all(own is None or isinstance(own, kind) for own in given):
        raise RequestError(f"{what} must be {kind.__name__}, for all prompts or in a list for each")
    if len(given) != count:
        raise RequestError(f"there are {count} prompts and {len(given)} {what}; give one for each, or one for all")
    return list(given)


@contextmanager
def errors_of_prompt(index: int, count: int) -> Iterator[None]:
    """Puts the number of their prompt into RequestErrors, and into their text when there are several."""
    try:
        yield
    except RequestError as error:
        numbered = error if count == 1 else type(error)(f"prompt {index}: {error}")
        numbered.reason, numbered.prompt_index = str(error), index
        raise numbered from None
