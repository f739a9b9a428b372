"""`precast chat`."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from precast.cli.options import load_llm, quant_option, runtime_options, sampling_options
from precast.cli.run import sampling_params
from precast.errors import PrecastError, RequestError

HELP = "/reset starts over, /exit ends (as does Ctrl-D); Ctrl-C stops an answer."


@click.command("chat")
@click.argument("model")
@click.option("--system", help="The system message.")
@quant_option
@sampling_options
@runtime_options
def command(
    model: str,
    system: str | None,
    quant: str | None,
    num_threads: int | None,
    kv_cache_memory: int | None,
    **sampling: Any,
) -> None:
    """Talk to MODEL: an engine, a model folder, a GGUF file, or `demo`.

    \b
    Examples:
      precast chat demo
      precast chat engine --system "Answer in French." --temperature 0.7
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and history
    with load_llm(model, quant, num_threads=num_threads, kv_cache_memory=kv_cache_memory) as llm:
        if not llm.has_chat_template:
            raise PrecastError(f"{model} has no chat template; use `precast run {model} PROMPT`")
        params = sampling_params(llm, **sampling)
        click.echo(HELP, err=True)
        opening = [{"role": "system", "content": system}] if system else []
        messages = list(opening)
        while (text := _ask()) is not None:
            if text == "/exit":
                return
            if text == "/reset":
                messages = list(opening)
            elif text.strip():
                _answer(llm, messages, text, params)


def _ask() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        click.echo()
        return ""


def _answer(llm: Any, messages: list[dict[str, str]], text: str, params: Any) -> None:
    """Streams an answer and keeps it in `messages`; Ctrl-C keeps what came so far."""
    asked = [*messages, {"role": "user", "content": text}]
    parts: list[str] = []
    stream = llm.stream(asked, params)
    try:
        for delta in stream:
            parts.append(delta.text)
            click.echo(delta.text, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        stream.close()
    except RequestError as error:
        click.echo(f"error: {error}", err=True)
        return
    click.echo()
    messages[:] = [*asked, {"role": "assistant", "content": "".join(parts)}]
