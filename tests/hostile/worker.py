"""Runs commands one after the other in one process, and says what each printed and how much memory it took.

Standard input: a JSON list of arguments a line. Standard output: for each a JSON object {"code", "out", "err",
"peak_bytes"}; the last is how far the resident memory rose above what it was before.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import resource
import sys
from pathlib import Path
from typing import Any

MOST_DATA = 3 << 30
"""Bytes, so that what takes memory without end does not take the machine's."""


def main() -> None:
    """Answers until standard input ends."""
    from precast.cli import main as command

    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
    answers = sys.stdout
    for line in sys.stdin:
        answers.write(json.dumps(run(command, json.loads(line))) + "\n")
        answers.flush()


def run(command: Any, arguments: list[str]) -> dict[str, Any]:
    """One command, as a process would run it."""
    out, err = io.StringIO(), io.StringIO()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is resident now
    before = resident("VmHWM")
    code: Any = "none"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command(arguments)
        except SystemExit as end:
            code = end.code
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "peak_bytes": resident("VmHWM") - before}


def resident(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


if __name__ == "__main__":
    main()
