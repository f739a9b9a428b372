"""Runs `precast` as users do: as a process, also in a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "precast"]

TIMEOUT_S = 600
"""For a process that hangs; nothing depends on it otherwise."""


@dataclass(frozen=True)
class Finished:
    """What a command left."""

    code: int
    out: str
    err: str

    def done(self) -> str:
        """Standard output of a command that must have worked."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self.out

    def failed(self, code: int = 1) -> str:
        """The one sentence of a command that must have failed with `code`."""
        assert self.code == code, f"exit code {self.code}, expected {code}\n{self.out}\n{self.err}"
        assert "Traceback" not in self.err
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        assert "fault in precast" not in self.err
        return lines[0]


def precast(*arguments: Any, stdin: str | bytes = "", **environment: str) -> Finished:
    """Runs a command to its end, with pipes for all three streams."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        COMMAND + [str(a) for a in arguments],
        input=data,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | environment,
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def start(*arguments: Any, **environment: str) -> subprocess.Popen[bytes]:
    """Starts a command with pipes. SIGINT is as in a shell's foreground: a background job inherits it ignored.

    The pipes are as small as the kernel makes them: who prints more than 4 KB waits until it is read, so a long answer
    cannot come to its end before a test does something about it, however late that is.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(
        COMMAND + [str(a) for a in arguments],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        pipesize=4096,
        env=os.environ | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


class Terminal:
    """A command in a terminal of its own: Ctrl-C is a key."""

    def __init__(self, *arguments: Any) -> None:
        self.text = ""
        self._read_to = 0
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvp(COMMAND[0], COMMAND + [str(a) for a in arguments])

    def type(self, keys: str) -> None:
        """Types keys; "\\x03" is Ctrl-C, "\\x04" Ctrl-D."""
        os.write(self._fd, keys.encode())

    def interrupt_prompt(self) -> None:
        """Presses Ctrl-C at a prompt until a new prompt is shown. Once would not always do: Python's readline loses a
        signal that comes between its printing the prompt and its waiting for a key."""
        seen = self.text.count("> ")
        deadline = time.monotonic() + TIMEOUT_S
        while self.text.count("> ") == seen:
            self.type("\x03")
            again = time.monotonic() + 1
            while self.text.count("> ") == seen and time.monotonic() < again:
                assert time.monotonic() < deadline, f"Ctrl-C gave no new prompt: {self.text}"
                self._poll(again)
        self._read_to = self.text.rindex("> ") + 2

    def wait_for(self, text: str) -> None:
        """Waits until `text` is shown after what was waited for before."""
        deadline = time.monotonic() + TIMEOUT_S
        while (at := self.text.find(text, self._read_to)) < 0:
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self.text}"
            assert self._read(deadline), f"the command ended before it showed {text!r}: {self.text}"
        self._read_to = at + len(text)

    def wait_for_more(self, characters: int) -> None:
        """Waits until so many more characters are shown."""
        deadline = time.monotonic() + TIMEOUT_S
        enough = len(self.text) + characters
        while len(self.text) < enough:
            assert time.monotonic() < deadline, f"no more was shown: {self.text}"
            assert self._read(deadline), f"the command ended: {self.text}"
        self._read_to = len(self.text)

    def end(self) -> int:
        """Waits for the end of the command; → its exit code."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._read(deadline):
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _poll(self, deadline: float) -> None:
        """Reads what comes until the deadline, if anything."""
        if select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            assert self._read(deadline), f"the command ended: {self.text}"

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._fd, 4096) if ready else b""
        except OSError:  # how a pseudo-terminal says that the other end is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


def state_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of change of every file below a folder: equal when none was written or replaced."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): (s.st_ino, s.st_size, s.st_mtime_ns) for path in files for s in [path.stat()]
    }
