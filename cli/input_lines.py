"""The JSONL files of `precast run --input-file`: a prompt a line, with settings of its own if need be."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from precast.errors import PrecastError


@dataclass(frozen=True)
class InputLine:
    """`prompt` is a text, a list of token ids or a list of messages. `settings` by the names of SamplingParams and
    RequestOptions; they go before those of the command. `id` comes back with the answer."""

    number: int
    prompt: Any
    settings: dict[str, Any]
    id: Any


def name_of(path: Path) -> str:
    """As messages call it."""
    return "standard input" if str(path) == "-" else str(path)


def read_lines(path: Path) -> list[InputLine]:
    """The lines of a JSONL file (`-`: standard input). Raises PrecastError, which names the line.

    Lines end at line feeds alone: JSON texts may hold the other separators of Unicode as they are.
    """
    where = name_of(path)
    data = standard_input() if str(path) == "-" else path.read_bytes()
    lines = []
    for number, line in enumerate(decoded(data, where).split("\n"), 1):
        if line.strip():
            try:
                lines.append(_line(number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                told = str(error) if type(error) is _LineError else 'expected {"prompt": …} or {"messages": […]}'
                raise PrecastError(f"{where}, line {number}: {told}") from None
    if not lines:
        raise PrecastError(f"{where} has no prompts")
    return lines


class _LineError(ValueError):
    pass


def _line(number: int, value: Any) -> InputLine:
    from precast.runtime.request_options import RequestOptions
    from precast.runtime.sampling import SamplingParams

    if not isinstance(value, dict) or len(value.keys() & {"prompt", "messages"}) != 1:
        raise ValueError
    prompt = value.get("prompt", value.get("messages"))
    if not prompt or not isinstance(prompt, str | list):
        raise _LineError("the prompt is empty, or neither a text nor a list")
    settings = {name: value[name] for name in value.keys() - {"prompt", "messages", "id"}}
    known = {field.name for kind in (SamplingParams, RequestOptions) for field in fields(kind)}
    if unknown := sorted(settings.keys() - known):
        raise _LineError(
            f"{unknown[0][:40]} is not known; a line has a prompt or messages, an id and settings: "
            f"{', '.join(sorted(known - {'use_beam_search'}))}"
        )
    if isinstance(bias := settings.get("logit_bias"), dict):
        try:
            settings["logit_bias"] = {int(token): value for token, value in bias.items()}  # JSON has texts for keys
        except ValueError:
            raise _LineError("logit_bias must map token ids to numbers") from None
    return InputLine(number, prompt, settings, value.get("id"))


def standard_input() -> bytes:
    """All of it; nothing when it was closed before the start."""
    return sys.stdin.buffer.read() if sys.stdin else b""


def decoded(data: bytes, where: str) -> str:
    """Raises PrecastError for what is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PrecastError(f"{where} is not UTF-8 text (byte {error.start})") from None
