"""What a request asks of scheduler and prefix cache."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from precast.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """No token of an answer depends on these; see docs/scheduling.md."""

    priority: int = 0
    """With request_order="priority": larger ones enter first."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with those of the same salt. None: with all that have none."""
    cache_priority: int = 35
    """0 to 100: what the request leaves in the cache outlives everything of lower priority."""

    timeout: float | None = None
    """Seconds from submission; what is not finished then ends with finish_reason `timeout`. None: no limit."""

    def __post_init__(self) -> None:
        """Raises RequestError for a value of the wrong type or out of range."""
        timeout = self.timeout
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise RequestError(f"timeout is {timeout!r}; it must be a number of seconds")
        if timeout is not None and not 0 <= timeout <= sys.float_info.max:
            raise RequestError(f"timeout is {timeout}; it must be at least 0 seconds")
        for name, low, high in (("priority", -(2**31), 2**31 - 1), ("cache_priority", 0, 100)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError(f"{name} is {value!r}; it must be a whole number")
            if not low <= value <= high:
                raise RequestError(f"{name} is {value}; it must be from {low} to {high}")
        if self.cache_salt is not None:
            if not isinstance(self.cache_salt, str):
                raise RequestError(f"cache_salt is {self.cache_salt!r}; it must be a text")
            try:
                self.cache_salt.encode()
            except UnicodeEncodeError:
                raise RequestError("cache_salt has a lone surrogate, which is not text") from None

    def to_native(self) -> dict[str, Any]:
        """Keyword arguments of `native.Executor.submit`."""
        timeout = None if self.timeout is None else float(self.timeout)
        return {
            "priority": self.priority,
            "cache_salt": self.cache_salt,
            "cache_priority": self.cache_priority,
            "timeout": timeout,
        }
