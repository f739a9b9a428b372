"""The model's chat templates, rendered as transformers renders them, within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precast.errors import RequestError, SourceError
from precast.json_file import read_small_file
from precast.runtime.text import template_process
from precast.runtime.text.tokenizer import read_json, read_special_tokens

Message = dict[str, Any]

TEMPLATE_FILE, TEMPLATE_FOLDER = "chat_template.jinja", "additional_chat_templates"
"""The default template, and a folder of others, each named by its file's stem."""

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names that transformers chooses by itself: `tool_use` for messages with tools, where there is one."""

MAX_TEMPLATE_BYTES = 1 << 20
"""Real ones take up to 20 kB."""


class ChatTemplate:
    """Messages → prompt text. The text already holds the special tokens: encode it without adding any."""

    def __init__(self, source: str | dict[str, str], special_tokens: dict[str, str], where: str) -> None:
        """`source`: the only template, or several by name. The process that will render them starts meanwhile."""
        self._templates = {DEFAULT: source} if isinstance(source, str) else source
        self._special = special_tokens
        self._where = where
        template_process.shared.start()

    def check(self) -> ChatTemplate:
        """Raises SourceError when a template does not compile. Returns itself."""
        for name, template in self._templates.items():
            try:
                template_process.shared.compile(template)
            except SourceError as error:
                named = self._where if len(self._templates) == 1 else f"{self._where} {name!r}"
                raise SourceError(f"{named} is not a valid chat template: {error}") from None
        return self

    @classmethod
    def from_folder(cls, folder: Path, chosen: str | Path | None = None) -> ChatTemplate | None:
        """The folder's templates: files (`chat_template.jinja`, `additional_chat_templates/NAME.jinja`), else those in
        tokenizer_config.json; None when it has none.

        `chosen`: a file with another template, or the name of one of the folder's that is used always. They are not
        compiled yet: see `check`. Raises SourceError when there is no such template, or one cannot be read.
        """
        special = read_special_tokens(folder)
        if chosen is not None and Path(chosen).is_file():
            return cls(_read(Path(chosen)), special, str(chosen))
        templates, where = _files(folder), f"{folder}: the chat template"
        if not templates:
            templates = _configured(folder)
        if chosen is not None:
            if str(chosen) not in templates:
                known = f"the model's templates: {', '.join(sorted(templates))}" if templates else "the model has none"
                raise SourceError(f"{chosen} is neither a file nor the name of a chat template; {known}")
            return cls(templates[str(chosen)], special, where)
        return cls(templates, special, where) if templates else None

    def render(
        self,
        messages: list[Message],
        add_generation_prompt: bool = True,
        *,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text.

        Args:
            messages: JSON values with `role` and what else the template knows.
            add_generation_prompt: end with the beginning of an answer.
            chat_template: the name of one of several templates. Default: `tool_use` when `tools` are given and there is
                one, else `default`.
            variables: the template's own (`tools`, `enable_thinking`, …), JSON values.

        Raises RequestError when there is no such template, with the template's own message when it refuses the
        messages, and when it takes too much time or memory.
        """
        source = self._named(chat_template, variables.get("tools") is not None)
        # transformers defines these two always: templates ask whether they are none, not whether they are defined.
        given: dict[str, Any] = {"tools": None, "documents": None} | self._special | variables
        given |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return template_process.shared.render(source, given)
        except RequestError as error:
            raise RequestError(f"the chat template refused these messages: {error}") from None

    def _named(self, name: str | None, with_tools: bool) -> str:
        if name is None:
            name = TOOL_USE if with_tools and TOOL_USE in self._templates else DEFAULT
        if name not in self._templates:
            raise RequestError(
                f"the model has no chat template named {name!r}; choose one of {', '.join(sorted(self._templates))}"
            )
        return self._templates[name]


def _files(folder: Path) -> dict[str, str]:
    paths = {path.stem: path for path in sorted((folder / TEMPLATE_FOLDER).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        paths[DEFAULT] = folder / TEMPLATE_FILE
    return {name: _read(path) for name, path in paths.items()}


def _read(path: Path) -> str:
    data = read_small_file(path, SourceError, MAX_TEMPLATE_BYTES, "a chat template")
    try:
        # As text files are read, with one kind of line end.
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} cannot be read: {error}") from None


def _configured(folder: Path) -> dict[str, str]:
    """tokenizer_config.json holds one template, or several: a list of {name, template}, or an object."""
    path = folder / "tokenizer_config.json"
    source = read_json(path).get("chat_template")
    if source is None:
        return {}
    if isinstance(source, str):
        return {DEFAULT: source}
    if isinstance(source, list) and all(isinstance(t, dict) for t in source):
        source = {t.get("name"): t.get("template") for t in source}
    if not isinstance(source, dict) or not all(isinstance(x, str) for pair in source.items() for x in pair):
        raise SourceError(f"{path}: chat_template is neither a text nor a list of templates with their names")
    return source
