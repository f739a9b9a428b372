"""The model's chat template, rendered as transformers renders it, in a sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from precast.errors import RequestError, SourceError
from precast.runtime.text.tokenizer import read_json, read_special_tokens

Message = dict[str, Any]


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's text for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env


class ChatTemplate:
    """Messages → prompt text. The text already holds the special tokens: encode it without adding any."""

    def __init__(self, source: str, special_tokens: dict[str, str], where: str) -> None:
        """Raises SourceError when the template does not parse."""
        try:
            self._template = _environment().from_string(source)
        except (TemplateError, RecursionError) as error:
            raise SourceError(f"{where} is not a valid chat template: {error}") from None
        self._special = special_tokens

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """The folder's template (`chat_template.jinja`, else the one in tokenizer_config.json), or None."""
        special = read_special_tokens(folder)
        path = folder / "chat_template.jinja"
        if path.is_file():
            try:
                return cls(path.read_text(encoding="utf-8"), special, str(path))
            except (OSError, UnicodeDecodeError) as error:
                raise SourceError(f"{path} cannot be read: {error}") from None
        source = read_json(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(source, list):  # several named templates
            named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
            source = named.get("default")
        return cls(source, special, f"chat_template of {folder}") if isinstance(source, str) else None

    def render(self, messages: list[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt text. `variables` are the template's own (`tools`, `enable_thinking`, …).

        Raises RequestError with the template's own message when it refuses the messages.
        """
        # transformers defines these two always: templates ask whether they are none, not whether they are defined.
        given: dict[str, Any] = {"tools": None, "documents": None} | self._special | variables
        given |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(given)
        except Exception as error:  # a template may fail in any way; it is the request's error
            raise RequestError(f"the chat template refused these messages: {error}") from None
