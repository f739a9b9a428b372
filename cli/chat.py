"""`precast chat`."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from precast.cli.options import (
    chat_template_option,
    load_llm,
    model_options,
    runtime_options,
    sampling_options,
    sampling_params,
    say_when_cut,
)
from precast.errors import PrecastError, RequestError

HELP = "/reset starts over, /exit ends (as does Ctrl-D), /help says this; Ctrl-C stops an answer."


@click.command("chat")
@click.argument("model")
@click.option("--system", help="The system message.")
@model_options
@chat_template_option
@sampling_options
@runtime_options
def command(model: str, system: str | None, **options: Any) -> None:
    """Talk to MODEL: an engine, a checkpoint, a model folder, a GGUF file, a hub id, or `demo`.

    A model that is not an engine is converted and built once, into the build cache. /reset starts over, /exit or Ctrl-D
    ends, and Ctrl-C stops an answer.

    \b
    Examples:
      precast chat demo
      precast chat engine --system "Answer in French." --temperature 0.7
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and history
    with load_llm(model, options) as llm:
        if not llm.has_chat_template:
            raise PrecastError(f"{model} has no chat template; use `precast run {model} PROMPT`")
        params = sampling_params(llm, options)
        if sys.stdin is not None and sys.stdin.isatty():
            click.echo(HELP, err=True)
        opening = [{"role": "system", "content": system}] if system else []
        messages = list(opening)
        while (text := _ask()) is not None:
            match text.strip():
                case "/exit":
                    return
                case "/reset":
                    messages = list(opening)
                case "/help":
                    click.echo(HELP, err=True)
                case "":
                    continue
                case command if command.startswith("/") and command[1:].isalpha():
                    click.echo(f"there is no {command}; {HELP}", err=True)
                case _:
                    _answer(llm, messages, text, params, options["max_tokens"])


def _ask() -> str | None:
    """The next line; None at the end of input. Ctrl-C drops what was typed."""
    if sys.stdin is None:  # closed before the start
        return None
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        click.echo()
        return ""
    except UnicodeDecodeError:
        raise PrecastError("standard input is not UTF-8 text") from None


def _answer(llm: Any, messages: list[dict[str, str]], text: str, params: Any, max_tokens: int | None) -> None:
    """Streams an answer and keeps it in `messages`; Ctrl-C stops it and keeps what came so far.

    A question that got no answer is forgotten.
    """
    asked = [*messages, {"role": "user", "content": text}]
    parts: list[str] = []
    finish_reason = None
    try:
        with contextlib.closing(llm.stream(asked, params)) as stream:
            for delta in stream:
                parts.append(delta.text)
                click.echo(delta.text, nl=False)
                finish_reason = delta.finish_reason
    except KeyboardInterrupt:
        pass
    except RequestError as error:
        click.echo(f"error: {error}; /reset starts over" if messages else f"error: {error}", err=True)
        return
    click.echo()
    say_when_cut(finish_reason, max_tokens)
    if parts:
        messages[:] = [*asked, {"role": "assistant", "content": "".join(parts)}]
