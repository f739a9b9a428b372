"""The model's tokenizer, from `tokenizer.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from precast.errors import SourceError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} when there is no such file. Raises SourceError when it is not a JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise SourceError(f"{path} must hold a JSON object")
    return value


def token_text(value: Any) -> str | None:
    """A special token as tokenizer_config.json writes it: a string, or an object with its `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


class Tokenizer:
    """Text ↔ token ids, as transformers' AutoTokenizer gives them for the same folder."""

    def __init__(self, rust: RustTokenizer, config: dict[str, Any]) -> None:
        self._rust = rust
        rust.no_padding()
        rust.no_truncation()
        self.bos_token = token_text(config.get("bos_token"))
        self.eos_token = token_text(config.get("eos_token"))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Raises SourceError when tokenizer.json is missing or broken."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise SourceError(f"{folder} has no tokenizer.json; this model takes and gives token ids only")
        try:
            rust = RustTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise SourceError(f"{path} is not a tokenizer: {error}") from None
        return cls(rust, read_json(folder / "tokenizer_config.json"))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._rust.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with the special tokens that the model wants around a text (BOS) unless told not to."""
        return list(self._rust.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return str(self._rust.decode(ids, skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        """The id of a token, or None."""
        found = self._rust.token_to_id(token)
        return None if found is None else int(found)
