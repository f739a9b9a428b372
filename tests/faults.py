"""Faults at every write, fsync and rename: what a kill at that instant leaves behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precast import files


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it, and no clean-up may run after it."""


class Faults:
    """Counts the calls of `files.write`, `fsync` and `replace`, and dies at the n-th.

    From then on every further file operation of the module fails as well, as it would in a dead process; what the
    code does on its way out cannot repair anything.
    """

    def __init__(self, patch: pytest.MonkeyPatch, die_at: int | None) -> None:
        self.calls = 0
        self.die_at = die_at
        for name in ("write", "fsync", "replace"):
            patch.setattr(files, name, self._wrap(getattr(files, name), name))
        patch.setattr(files.shutil, "rmtree", self._wrap_cleanup(files.shutil.rmtree))

    @property
    def dead(self) -> bool:
        return self.die_at is not None and self.calls >= self.die_at

    def _wrap(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if self.dead:
                raise Killed
            self.calls += 1
            if self.dead:
                if name == "write":  # half of it reached the file
                    real(args[0], memoryview(args[1])[: len(args[1]) // 2])
                    args[0].flush()
                raise Killed
            return real(*args)

        return call

    def _wrap_cleanup(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *args: Any, **kwargs: Any) -> Any:
            if self.dead:
                return None
            return real(path, *args, **kwargs)

        return call


def die_everywhere(work: Callable[[], None], check: Callable[[int], None], most: int = 400) -> int:
    """Runs `work` once per fault point, dying there; `check(point)` looks at what is left. → number of points.

    More than `most` points are thinned out evenly; the first and last fifty are always tried.
    """
    with pytest.MonkeyPatch.context() as patch:
        counter = Faults(patch, None)
        work()
        total = counter.calls
    points = range(1, total + 1)
    if total > most:
        step = total // most + 1
        points_list = sorted({*range(1, 51), *range(1, total + 1, step), *range(total - 49, total + 1)})
    else:
        points_list = list(points)
    for point in points_list:
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, point)
            with pytest.raises(Killed):
                work()
        check(point)
    return total


def fail_everywhere(work: Callable[[], None], check: Callable[[int], None]) -> int:
    """Runs `work` once per fault point, where the call fails as on a full disk; all calls after it work again.

    `work` must let the OSError through; `check(point)` looks at what is left. → number of points.
    """
    with pytest.MonkeyPatch.context() as patch:
        counter = Faults(patch, None)
        work()
        total = counter.calls
    for point in range(1, total + 1):
        with pytest.MonkeyPatch.context() as patch:
            _fail_once(patch, point)
            with pytest.raises(OSError, match="No space left"):
                work()
        check(point)
    return total


def _fail_once(patch: pytest.MonkeyPatch, point: int) -> None:
    calls = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        return call

    for name in ("write", "fsync", "replace"):
        patch.setattr(files, name, wrap(getattr(files, name)))
