"""One loaded engine: its executor, tokenizer, chat template and defaults. What LLM and AsyncLLM share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from precast._native import runtime as native
from precast.errors import EngineError, RequestError
from precast.json_file import read_object
from precast.runtime.generation_config import defaults_of
from precast.runtime.memory import available_memory
from precast.runtime.output import RequestOutput
from precast.runtime.request_options import RequestOptions
from precast.runtime.sampling import SamplingParams
from precast.runtime.text.chat_template import ChatTemplate
from precast.runtime.text.tokenizer import Tokenizer

Message = dict[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids, or the messages of a chat."""

FORMAT, FORMAT_VERSION = "precast-engine", 0
"""Of the config.json of engines that are read here."""

USUAL_TOKEN = 16
"""Characters: what is not much longer needs no look at the vocabulary."""

KV_MEMORY_SHARE = 0.5
"""The largest share of the available memory that the KV pool takes unless told."""


class Session:
    """Thread-safe, apart from `close`."""

    def __init__(
        self,
        engine: str | Path,
        *,
        num_threads: int | None = None,
        kv_cache_memory: int | None = None,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = None,
        max_chunk_tokens: int | None = None,
        scheduler_policy: str | None = None,
        request_order: str | None = None,
        prefill_order: str | None = None,
        max_overtakes: int | None = None,
        enable_prefix_caching: bool | None = None,
        max_queued_requests: int | None = None,
        max_queued_tokens: int | None = None,
        kv_events: int | None = None,
        generation_config: bool = True,
        chat_template: str | Path | None = None,
    ) -> None:
        """See `RuntimeOptions` and `BaseLLM`."""
        for name, value in (
            ("num_threads", num_threads),
            ("kv_cache_memory", kv_cache_memory),
            ("max_batch_size", max_batch_size),
            ("max_num_tokens", max_num_tokens),
            ("max_queued_requests", max_queued_requests),
            ("max_queued_tokens", max_queued_tokens),
            ("kv_events", kv_events),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63):
                raise EngineError(f"{name} is {value!r}; it must be a whole number, at least 0")
        folder = Path(engine)
        config = _config(folder)
        path = folder / "rank0.engine"
        if not path.is_file():
            raise EngineError(f"{folder} has no rank0.engine; build the engine again")
        self.folder = folder
        has_tokenizer = (folder / "tokenizer.json").is_file()
        self.chat_template = ChatTemplate.from_folder(folder, chat_template) if has_tokenizer else None
        self.tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
        if self.chat_template is not None:
            self.chat_template.check()
        generation = read_object(folder / "generation_config.json", EngineError, optional=True)
        self._model_defaults = defaults_of(generation, str(folder / "generation_config.json"))
        self._use_defaults = generation_config
        scheduling: dict[str, Any] = {
            "max_chunk_tokens": max_chunk_tokens,
            "scheduler_policy": scheduler_policy,
            "request_order": request_order,
            "prefill_order": prefill_order,
            "max_overtakes": max_overtakes,
            "enable_prefix_caching": enable_prefix_caching,
            "max_queued_requests": max_queued_requests,
            "max_queued_tokens": max_queued_tokens,
            "kv_events": kv_events,
        }
        loaded = native.Engine(path, num_threads or 0)
        self.limits = loaded.limits
        self.num_prefix_pages = (
            loaded.prefixes.num_pages if loaded.prefixes and enable_prefix_caching is not False else 0
        )
        for word in self._model_defaults.words():
            if wrong := [token for token in word if isinstance(token, int) and token >= self.limits.vocab_size]:
                raise EngineError(
                    f"{folder / 'generation_config.json'} bans the token {wrong[0]}, which does not exist"
                )
        self.executor = native.Executor(
            loaded.backend,
            num_pages=num_pages(self.limits, kv_cache_memory, available_memory(), self.num_prefix_pages),
            max_batch_size=max_batch_size or 0,
            max_num_tokens=max_num_tokens or 0,
            **{name: value for name, value in scheduling.items() if value is not None},
            eos_token_ids=self._eos(generation, config),
            vocab=loaded.vocab,
            prefixes=loaded.prefixes,
        )

    def _eos(self, generation: dict[str, Any], config: dict[str, Any]) -> list[int]:
        """All ids that end a sequence: the generation config's (else the model config's) and the tokenizer's."""
        pretrained = config.get("pretrained_config")
        named = generation.get("eos_token_id")
        if named is None and isinstance(pretrained, dict):
            named = pretrained.get("eos_token_id")
        listed = named if isinstance(named, list) else [] if named is None else [named]
        if wrong := [i for i in listed if type(i) is not int or not -(2**31) <= i < 2**31]:
            told = repr(wrong[0])[:40]  # an integer may have thousands of digits
            raise EngineError(f"eos_token_id {told} in {self.folder} is no token id; correct it")
        ids = set(listed)
        if self.tokenizer is not None and self.tokenizer.eos_token is not None:
            own = self.tokenizer.token_id(self.tokenizer.eos_token)
            ids |= {own} if own is not None else set()
        return sorted(ids)

    def default_params(self, generation_config: bool | None = None, **given: Any) -> SamplingParams:
        """SamplingParams of `given`, over the model's defaults unless told not to use them."""
        use = self._use_defaults if generation_config is None else generation_config
        params = SamplingParams(**given)
        return params.over(self._model_defaults) if use else params

    def resolved(self, params: SamplingParams | None) -> SamplingParams:
        """`params` over the model's defaults."""
        params = params or SamplingParams()
        return params.over(self._model_defaults) if self._use_defaults else params

    def prompt_ids(self, prompt: Prompt, template_variables: dict[str, Any] | None = None) -> list[int]:
        """The token ids of a prompt. Raises RequestError for what is no prompt, or what this engine cannot encode."""
        if isinstance(prompt, str):
            return self._encode(prompt, add_special_tokens=True)
        if is_messages(prompt):
            if self.chat_template is None:
                raise RequestError(f"{self.folder} has no chat template; give a text or token ids")
            text = self.chat_template.render(
                [dict(m) for m in cast(Sequence[Message], prompt)], **(template_variables or {})
            )
            return self._encode(text, add_special_tokens=False)
        if is_token_ids(prompt):
            ids = [int(i) for i in prompt]  # type: ignore[arg-type]
            if all(-(2**31) <= i < 2**31 for i in ids):
                return ids
        raise RequestError("a prompt must be a text, a list of token ids, or a list of messages with role and content")

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self.tokenizer is None:
            raise RequestError(f"{self.folder} has no tokenizer; give token ids")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError("the prompt has a lone surrogate, which is not text") from None
        self._refuse_endless(text)
        ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if max(ids, default=0) >= self.limits.vocab_size:  # also: the core takes 31 bits
            raise RequestError(f"the tokenizer of {self.folder} gives the id {max(ids)}, which the model does not have")
        return ids

    def _refuse_endless(self, text: str) -> None:
        """Before a text is encoded that tokens of this number cannot hold: that takes a hundred bytes a character."""
        assert self.tokenizer is not None
        most = self.limits.max_seq_len
        if len(text) > USUAL_TOKEN * most and len(text) > self.tokenizer.longest_token * most:
            raise RequestError(
                f"the prompt has {len(text)} characters, more than the {most} tokens that this engine holds can have"
            )

    def submit(self, ids: list[int], params: SamplingParams, stream: bool, options: RequestOptions) -> int:
        """Enqueues a request; `params` are resolved. Raises RequestError when it is refused."""
        return self.executor.submit(ids, params.to_native(stream, self._word_tokens), **options.to_native())

    def _word_tokens(self, word: str) -> list[int]:
        return self._encode(word, add_special_tokens=False)

    def failure(self, output: RequestOutput) -> Exception:
        """The exception for an output whose finish_reason is `error`."""
        if self.executor.stats().error:
            return EngineError(f"the engine {self.folder} failed: {output.error}")
        return RequestError(output.error or "the request failed")


def is_messages(prompt: Any) -> bool:
    """True for the messages of a chat."""
    if not isinstance(prompt, Sequence) or len(prompt) == 0:
        return False
    return all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in prompt)


def is_token_ids(prompt: Any) -> bool:
    """True for a list of token ids (any integers; the empty list too)."""
    return (
        hasattr(prompt, "__iter__")
        and not isinstance(prompt, str | bytes)
        and all(hasattr(i, "__index__") and not isinstance(i, bool) for i in prompt)
    )


TYPICAL_WINDOWS = 4
"""The typical sequence that memory is divided for has this many tokens for each of the largest window."""


def num_pages(
    limits: native.ModelLimits, kv_cache_memory: int | None, available: int, prefix_pages: int = 0
) -> list[int]:
    """Pages of each layer group's KV pool: what the engine's limits can use beside `prefix_pages` of its prefixes,
    within `kv_cache_memory` bytes or a share of `available`.

    Sequences of max_seq_len can use as many pages of full attention as they are long, and for a window a few only; but
    cached prefixes are typically shorter. So pools with a window have at least what equally many *typical* sequences
    hold, TYPICAL_WINDOWS of the largest window long (or max_seq_len, if that is less), and memory that does not hold
    all that is divided so that every pool holds equally many typical sequences. Pages take memory when they are first
    written. Raises EngineError when there is no room for one page of every group.
    """
    groups = limits.groups
    budget = int(available * KV_MEMORY_SHARE) if kv_cache_memory is None else kv_cache_memory
    sizes = [max(1, group.page_bytes) for group in groups]
    budget -= prefix_pages * sum(sizes)
    window = max(group.window for group in groups)
    longest = pages_of_sequence(limits, limits.max_seq_len)
    typical = pages_of_sequence(limits, min(limits.max_seq_len, TYPICAL_WINDOWS * window or limits.max_seq_len))
    sequences = limits.max_batch_size * max(map(operator.truediv, longest, typical))  # typical ones, of all groups
    wanted = [math.ceil(sequences * pages) for pages in typical]
    if sum(map(operator.mul, wanted, sizes)) > budget:
        sequences = budget / sum(map(operator.mul, typical, sizes))
        wanted = [int(sequences * pages) for pages in typical]
    if min(wanted) < 1:
        raise EngineError(
            f"one KV page of every layer takes {sum(sizes)} bytes, and there are {max(budget, 0)} for the KV cache"
            f"{' beside the prefixes of the engine' if prefix_pages else ''}; give it more memory"
        )
    return [min(pages + prefix_pages, 2**31 - 1) for pages in wanted]


def pages_of_sequence(limits: native.ModelLimits, length: int) -> list[int]:
    """Most pages of each layer group that a sequence of `length` tokens holds at a time."""
    page = limits.page_tokens
    whole = -(-length // page)
    # The window before a page of rows, and these: neither need begin on a page border.
    return [min(whole, (g.window + 2 * page - 3) // page + 1) if g.window else whole for g in limits.groups]


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise EngineError(f"there is no engine folder {folder}; `precast build` makes one")
    config = read_object(folder / "config.json", EngineError, optional=True)
    if config.get("format") != FORMAT:
        raise EngineError(f"{folder} is not a precast engine; `precast build` makes one")
    if config.get("format_version") != FORMAT_VERSION:
        raise EngineError(
            f"{folder} is an engine of format {config.get('format_version')!r}, and this precast reads format "
            f"{FORMAT_VERSION}; build it again with this precast"
        )
    return config
