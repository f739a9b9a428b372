"""The model's tokenizer, from `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from precast.errors import PrecastError, RequestError, SourceError
from precast.json_file import read_object, read_small_file
from precast.runtime.text.tokenizer_limits import MAX_BYTES, refuse_before_loading, refuse_growth, refuse_long

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

CLASS_TOKENS: dict[str, dict[str, str]] = {"GemmaTokenizer": {"mask_token": "<mask>"}}
"""Special tokens that a class of transformers has without a config that names them."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} when there is no such file. Raises SourceError when it is not a JSON object."""
    return read_object(path, SourceError, optional=True)


def read_special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token` and its like → text, as transformers merges tokenizer_config.json and special_tokens_map.json."""
    try:
        named, _ = _special_tokens(_read_config(folder))
    except (TypeError, ValueError) as error:
        raise SourceError(f"{folder / 'tokenizer_config.json'}: its special tokens are not readable: {error}") from None
    return {key: token.content for key, token in named.items()}


class Tokenizer:
    """Text ↔ token ids, as transformers' AutoTokenizer gives them for the same folder.

    Which tokens surround a text (BOS) is decided by the post-processor in tokenizer.json: transformers 5 ignores
    `add_bos_token` beside it.
    """

    def __init__(self, rust: RustTokenizer, special_tokens: dict[str, str]) -> None:
        self.rust = rust
        rust.no_padding()
        rust.no_truncation()
        self.bos_token = special_tokens.get("bos_token")
        self.eos_token = special_tokens.get("eos_token")

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Raises SourceError when tokenizer.json is missing or broken."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise SourceError(f"{folder} has no tokenizer.json; this model takes and gives token ids only")
        rust = _load(path)
        _add_tokens(rust, folder)
        return cls(rust, read_special_tokens(folder))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self.rust.get_vocab_size(with_added_tokens=True))

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, in the form in which the vocabulary keeps it."""
        return max(map(len, self.rust.get_vocab(with_added_tokens=True)), default=1)

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token that begins a text, where the model has one."""
        return None if self.bos_token is None else self.token_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that ends a text, where the model has one; generation_config.json may name more."""
        return None if self.eos_token is None else self.token_id(self.eos_token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with the special tokens that the model wants around a text (BOS) unless told not to.

        Raises RequestError for text that is not valid Unicode (lone surrogates), or that the tokenizer fails on.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError("the text is not valid Unicode and cannot be encoded") from None
        with failing_as(RequestError, "the tokenizer cannot encode this text"):
            return list(self.rust.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids without a token have none.

        Raises RequestError for ids outside 0 … 2³² − 1, or that the tokenizer fails on.
        """
        if ids and not 0 <= min(ids) <= max(ids) < 1 << 32:
            raise RequestError("token ids must lie in 0 … 2^32 - 1")
        with failing_as(RequestError, "the tokenizer cannot decode these tokens"):
            return str(self.rust.decode(ids, skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        """The id of a token, or None."""
        found = self.rust.token_to_id(token)
        return None if found is None else int(found)


@contextmanager
def failing_as(kind: type[PrecastError], sentence: str) -> Iterator[None]:
    """Whatever `tokenizers` raises inside, as a `kind` that begins with `sentence`."""
    try:
        yield
    except PrecastError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise kind(f"{sentence}: {error}") from None


def is_failure(error: BaseException) -> bool:
    """Whether an exception may be one of `tokenizers`, which raises bare Exception, and panics as a BaseException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _load(path: Path) -> RustTokenizer:
    data = read_small_file(path, SourceError, MAX_BYTES)
    refuse_before_loading(data, str(path))
    with failing_as(SourceError, f"{path} is not a tokenizer"):
        rust = RustTokenizer.from_buffer(data)
    refuse_growth(rust, str(path))
    return rust


def _read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; in old folders, without `added_tokens_decoder`, special_tokens_map.json wins."""
    config = read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config = config | read_json(folder / "special_tokens_map.json")
    return CLASS_TOKENS.get(_class(config), {}) | config


def _class(config: dict[str, Any]) -> str:
    return str(config.get("tokenizer_class")).removesuffix("Fast")


def _special_tokens(config: dict[str, Any]) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    """Special tokens with names (`bos_token`, and a model's own such as `image_token`), and those without."""
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    own = {key: value for key, value in config.items() if key.endswith("_token") and key not in SPECIAL_TOKENS}
    named = {key: config.get(key) for key in SPECIAL_TOKENS} | own | (extra if isinstance(extra, dict) else {})
    tokens = {key: token for key, value in named.items() if (token := _added_token(value)) is not None}
    listed = extra if isinstance(extra, list) else []
    return tokens, [token for value in listed if (token := _added_token(value)) is not None]


def _added_token(value: Any) -> AddedToken | None:
    """A special token as tokenizer_config.json writes it: a string, or an object with its `content`."""
    if isinstance(value, str) and value:
        return AddedToken(value, special=True, normalized=False)
    if not isinstance(value, dict) or not value.get("content"):
        return None
    known = ("content", "single_word", "lstrip", "rstrip", "normalized")
    return AddedToken(**{key: value[key] for key in known if key in value}, special=True)


def _add_tokens(rust: RustTokenizer, folder: Path) -> None:
    """Gives `rust` the tokens that only tokenizer_config.json names, in transformers' order: it decides their ids."""
    where = folder / "tokenizer_config.json"
    config = _read_config(folder)
    try:
        listed = {
            int(index): AddedToken(**{key: value for key, value in token.items() if key != "__type"})
            for index, token in (config.get("added_tokens_decoder") or {}).items()
        }
        named, extra = _special_tokens(config)
    except (AttributeError, TypeError, ValueError) as error:
        raise SourceError(f"{where}: its special tokens or added_tokens_decoder are not readable: {error}") from None
    present = rust.get_added_tokens_decoder().values()
    reprs, known = {repr(token) for token in present}, {token.content for token in (*present, *listed.values())}
    new = [token for _, token in sorted(listed.items()) if repr(token) not in reprs]
    names = {token.content for token in named.values()}
    for token in new:
        token.special = token.special or token.content in names
    unlisted = {token.content: token for token in (*named.values(), *extra) if token.content not in known}
    refuse_long((token.content for token in (*new, *unlisted.values())), str(where))
    rust.add_tokens([*new, *unlisted.values()])
    own = CLASS_TOKENS.get(_class(config), {}).values()
    rust.add_special_tokens([AddedToken(text, normalized=False) for text in own if rust.token_to_id(text) is not None])
