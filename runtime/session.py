"""One loaded engine: its executor, tokenizer, chat template and defaults. What LLM and AsyncLLM share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack, cast

from precast._native import runtime as native
from precast.errors import EngineError, RequestError
from precast.json_file import read_object
from precast.runtime.checks import check_text
from precast.runtime.generation_config import defaults_of
from precast.runtime.kv_pools import num_pages
from precast.runtime.memory import available_memory
from precast.runtime.options import RuntimeOptions, check_limits, given_options
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


class Session:
    """Thread-safe, apart from `close`."""

    def __init__(self, engine: str | Path, **options: Unpack[RuntimeOptions]) -> None:
        """See `BaseLLM`."""
        given = given_options(options)
        folder = Path(engine)
        config = _config(folder)
        path = folder / "rank0.engine"
        if not path.is_file():
            raise EngineError(f"{folder} has no rank0.engine; build the engine again")
        self.folder = folder
        template = given.pop("chat_template", None)
        has_tokenizer = (folder / "tokenizer.json").is_file()
        self.chat_template = ChatTemplate.from_folder(folder, template) if has_tokenizer else None
        self.tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
        if self.chat_template is not None:
            self.chat_template.check()
        generation = read_object(folder / "generation_config.json", EngineError, optional=True)
        self._model_defaults = defaults_of(generation, str(folder / "generation_config.json"))
        self._use_defaults = given.pop("generation_config", True)
        loaded = native.Engine(path, given.pop("num_threads", 0), given.pop("weights_memory", "map"))
        self.limits = loaded.limits
        check_limits(given, self.limits)
        prefixes = loaded.prefixes if given.get("enable_prefix_caching", True) else None
        self.num_prefix_pages = 0 if prefixes is None else prefixes.num_pages
        for word in self._model_defaults.words():
            if wrong := [token for token in word if isinstance(token, int) and token >= self.limits.vocab_size]:
                raise EngineError(
                    f"{folder / 'generation_config.json'} bans the token {wrong[0]}, which does not exist"
                )
        memory = given.pop("kv_cache_memory", None)
        self.executor = native.Executor(
            loaded.backend,
            num_pages=num_pages(self.limits, memory, available_memory(), self.num_prefix_pages),
            eos_token_ids=self._eos(generation, config),
            vocab=loaded.vocab,
            prefixes=prefixes,
            **given,  # the names are the same
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
        return self.resolved(SamplingParams(**given), generation_config)

    def resolved(self, params: SamplingParams | None, generation_config: bool | None = None) -> SamplingParams:
        """`params` over the model's defaults, unless those are not to be used."""
        if not isinstance(params, SamplingParams | None):
            raise RequestError(f"params is {repr(params)[:80]}; it must be SamplingParams")
        params = params or SamplingParams()
        use = self._use_defaults if generation_config is None else generation_config
        return params.over(self._model_defaults) if use else params

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
        check_text("the prompt", text)
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
        if not isinstance(options, RequestOptions):
            raise RequestError(f"options is {repr(options)[:80]}; it must be RequestOptions")
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
