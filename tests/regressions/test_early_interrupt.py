"""Ctrl-C before a command has begun: one line, not a traceback."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import builtins
from precast.__main__ import main

real = builtins.__import__

def interrupted(name, *rest):
    if name == "click":
        raise KeyboardInterrupt
    return real(name, *rest)

builtins.__import__ = interrupted
main()
"""


def test_an_interrupt_while_modules_are_imported_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "cancelled\n")
