"""The command line: one click command a file; each parses, calls and prints."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from precast import __version__
from precast.errors import PrecastError

COMMANDS = {
    "convert": "Convert a model into a checkpoint.",
    "build": "Compile a checkpoint into an engine.",
    "run": "Answer a prompt, or a file of prompts.",
    "chat": "Talk to a model.",
    "plan": "Tell what an engine can serve.",
    "bench": "Measure an engine.",
    "eval": "Measure the quality of a model's predictions.",
    "inspect": "Show what an engine, a checkpoint or a model is.",
    "cache": "List, check and prune built engines.",
}

EXIT_FAILED, EXIT_CANCELLED, EXIT_TERMINATED = 1, 130, 143

MAX_SHOWN = 2000
"""Characters of an error, or of a value from a file."""


class _Commands(click.Group):
    """Loads a command's module when it is asked for: `run` starts without what `convert` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"precast.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="precast")
def cli() -> None:
    """Compiles language models ahead of time into engines, and runs them.

    \b
    Examples:
      precast run demo "What is the capital of France?"
      precast convert ./SmolLM2-135M-Instruct --output-dir ckpt --quant int8
      precast build ckpt --output-dir engine
      precast chat engine
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 done, 1 failed, 2 misused, 130 cancelled, 143 terminated.

    Whatever ends it early unwinds the stack, so that unfinished folders are removed and engines end their step. A
    second signal does not wait for that.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result: Any = cli.main(arguments, prog_name="precast", standalone_mode=False)
        if sys.stdout is not None:  # None: closed before the start
            sys.stdout.flush()
        sys.exit(result if isinstance(result, int) else 0)
    except click.UsageError as error:
        _fail(_usage(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _fail("cancelled", EXIT_CANCELLED)
    except PrecastError as error:
        _fail(one_line(f"error: {error}"), EXIT_FAILED)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the reader is gone; nothing may be written at exit
        sys.exit(EXIT_FAILED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(one_line(f"error: {where}{error.strerror or error}"), EXIT_FAILED)
    except Exception as error:
        if os.environ.get("PRECAST_TRACEBACK"):
            raise
        message = one_line(f"{type(error).__name__}: {error}")
        _fail(
            f"error: this is a fault in precast ({message}); please report it with the output of the same command "
            "under PRECAST_TRACEBACK=1",
            EXIT_FAILED,
        )


def _terminate(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(EXIT_TERMINATED)


def _usage(error: click.UsageError) -> str:
    if error.ctx is None:
        return f"error: {error.format_message()}"
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # since click 8.2
        return error.format_message()
    return f"error: {error.format_message().rstrip('.')}; see {error.ctx.command_path} --help"


def _fail(message: str, code: int) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(code)


def one_line(text: str) -> str:
    """The text as a terminal may show it: names from foreign files may hold anything, and be of any length."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:MAX_SHOWN])
    return shown if len(text) <= MAX_SHOWN else f"{shown}…"
