"""What a request's consumer has not read yet."""

from __future__ import annotations

from collections import deque

from precast._native import runtime as native


class Unread:
    """Deltas of one request, oldest first. Bounded: what an output adds while its delta before is unread is merged with
    that, so a consumer that stops reading costs one delta for each output, and the tokens that they hold."""

    def __init__(self) -> None:
        self._deltas: deque[native.OutputDelta] = deque()

    def __len__(self) -> int:
        return len(self._deltas)

    def add(self, delta: native.OutputDelta) -> None:
        """Takes a delta over: it may be empty then."""
        waiting = next((other for other in self._deltas if other.index == delta.index), None)
        # A request's last delta stays behind those of its other outputs.
        if waiting is None or (delta.finished and len(self._deltas) > 1):
            self._deltas.append(delta)
        else:
            waiting.append(delta)

    def take(self) -> native.OutputDelta:
        """The oldest one. Raises IndexError when there is none."""
        return self._deltas.popleft()
