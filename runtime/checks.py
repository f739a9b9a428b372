"""What values of options must be: each check raises one sentence that names the option."""

from __future__ import annotations

from typing import Any

from precast.errors import PrecastError, RequestError

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def check_number(name: str, value: Any) -> None:
    """Raises RequestError unless it is a number that a double may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} is {value!r}; it must be a number")
    if isinstance(value, int) and value.bit_length() > 64:
        raise RequestError(f"{name} is an integer of {value.bit_length()} bits; it must be a smaller number")


def check_whole(name: str, value: Any, least: int, most: int, error: type[PrecastError] = RequestError) -> None:
    """Raises `error` unless it is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{name} is {value!r}; it must be a whole number")
    if not least <= value <= most:
        raise error(f"{name} is {value}; it must be from {least} to {most}")


def check_text(name: str, value: Any) -> None:
    """Raises RequestError unless it is a text, and one that UTF-8 can hold."""
    if not isinstance(value, str):
        raise RequestError(f"{name} is {value!r}; it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} has a lone surrogate, which is not text") from None
