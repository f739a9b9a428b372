"""The process that renders chat templates: a script that is run by its path and imports nothing of precast.

A template is a program from outside. It can neither call nor reach anything (jinja2's sandbox), but it can loop, or
build values that are exponential in its length, inside single calls that no Python code interrupts. So it runs in a
process of its own, with limits that the kernel keeps: a template that breaks them ends this process, and nothing else.

Standard input: requests, each `<I` length and a JSON object {"source", "variables"?, "seconds", "characters"}. Without
variables the template is only compiled. Standard output: for each request `<BI` kind and length, and UTF-8 text.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

TEXT, REFUSED, INVALID, TOO_LARGE = range(4)
"""Kinds of answers: the rendered text ("" when only compiled); why the template failed; why it does not compile; ""."""

MEMORY = 160 << 20
"""Bytes of private memory; Python and jinja2 take 15 MiB of it."""

ADDRESS_SPACE = 512 << 20
"""Bytes, for kernels that do not count private memory."""

MAX_REASON = 2000
"""Characters of an error message."""


def main() -> None:
    """Answers requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C means the process that asks
    compile_template = _compiler()
    for limit, most in ((resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_AS, ADDRESS_SPACE), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    answers = os.dup(sys.stdout.fileno())
    while len(head := sys.stdin.buffer.read(4)) == 4:
        try:
            kind, text = _answer(json.loads(sys.stdin.buffer.read(struct.unpack("<I", head)[0])), compile_template)
            data = text.encode("utf-8", "surrogatepass")
        except MemoryError:
            kind, data = TOO_LARGE, b""
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        with open(answers, "wb", closefd=False) as out:
            out.write(struct.pack("<BI", kind, len(data)) + data)
        if kind == TOO_LARGE:  # what is left of the memory may be in pieces
            return


def _answer(request: dict[str, Any], compile_template: Any) -> tuple[int, str]:
    # CPU time, so that a busy machine does not matter; SIGPROF ends the process wherever it is.
    signal.setitimer(signal.ITIMER_PROF, request["seconds"])
    kind = INVALID
    try:
        template = compile_template(request["source"])
        if "variables" not in request:
            return TEXT, ""
        kind = REFUSED
        text = template.render(request["variables"])
    except MemoryError:
        raise
    except RecursionError:
        return kind, "it nests too deeply"
    except Exception as error:  # a template may fail in any way
        return kind, str(error)[:MAX_REASON] or type(error).__name__
    return (TEXT, text) if len(text) <= request["characters"] else (TOO_LARGE, "")


def _compiler() -> Any:
    """source → template, as transformers compiles it (`_compile_jinja_template`)."""
    from jinja2 import TemplateError, nodes, pass_eval_context
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %} … {% endgeneration %}` marks the assistant's text for training; here it is that text."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

        @pass_eval_context
        def _text(self, _context: Any, caller: Any) -> Any:
            return caller()

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return lru_cache(maxsize=16)(environment.from_string)


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    main()
