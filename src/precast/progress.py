"""How long work reports where it is."""

from __future__ import annotations

from collections.abc import Callable

# Called as progress(stage, done, total) with a short name of the stage ("quantize", "pack") and counts of any unit;
# done == total ends the stage. Called often: it must be cheap.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """The progress of those who do not watch."""
