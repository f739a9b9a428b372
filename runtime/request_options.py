"""What a request asks of scheduler and prefix cache."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from precast.errors import RequestError
from precast.runtime.checks import INT32_MAX, check_number, check_text, check_whole


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
        if self.timeout is not None:
            check_number("timeout", self.timeout)
            if not 0 <= self.timeout <= sys.float_info.max:
                raise RequestError(f"timeout is {self.timeout}; it must be at least 0 seconds")
        check_whole("priority", self.priority, -INT32_MAX - 1, INT32_MAX)
        check_whole("cache_priority", self.cache_priority, 0, 100)
        if self.cache_salt is not None:
            check_text("cache_salt", self.cache_salt)

    def to_native(self) -> dict[str, Any]:
        """Keyword arguments of `native.Executor.submit`."""
        return {
            "priority": self.priority,
            "cache_salt": self.cache_salt,
            "cache_priority": self.cache_priority,
            "timeout": None if self.timeout is None else float(self.timeout),
        }
