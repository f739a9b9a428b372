"""Workloads for `precast plan`: requests from a JSONL file, or drawn from distributions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._native import runtime as native
from precast.errors import PrecastError, RequestError
from precast.json_file import read_small_file

if TYPE_CHECKING:
    import numpy as np

MAX_FILE_BYTES = 256 << 20
MAX_REQUESTS = 100_000
MAX_TOKENS = 1 << 24
"""Of a prompt or an answer; engines take far fewer."""


@dataclass(frozen=True)
class WorkloadRequest:
    """A request to come. Without ids, the prompt is `prompt_tokens` long, and its first shared_prefix_tokens are those
    of all requests of the same `prefix` (a number)."""

    arrival: float
    """Seconds from the start."""
    prompt_tokens: int
    output_tokens: int
    prompt_token_ids: tuple[int, ...] | None = None
    max_tokens: int = 0
    """What it asks for, when that is more than output_tokens."""
    shared_prefix_tokens: int = 0
    prefix: int = 0
    priority: int = 0
    cache_salt: str | None = None


FIELDS = {field.name for field in fields(WorkloadRequest)}
"""Of a line of a file too."""

Workload = list[WorkloadRequest]
"""By arrival."""


def to_native(workload: Workload, time_scale: float = 1.0) -> native.Workload:
    """For `native.simulate`; arrivals are multiplied by time_scale."""
    converted = native.Workload()
    for request in workload:
        converted.add(
            request.arrival * time_scale,
            list(request.prompt_token_ids) if request.prompt_token_ids is not None else request.prompt_tokens,
            request.output_tokens,
            max_tokens=request.max_tokens,
            shared_prefix_tokens=request.shared_prefix_tokens,
            prefix=request.prefix,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
    return converted


def read_workload(text: str) -> Workload:
    """The workload of a file's path, or of a text like "requests=100,rate=2,prompt=100..2000,output=200".

    Raises PrecastError for what is neither, and for a line or a part that makes no sense.
    """
    path = Path(text)
    if path.exists():
        return _from_file(path)
    if "=" not in text:
        raise PrecastError(
            f"the workload {text} does not exist; give a JSONL file, or a distribution like "
            "requests=100,rate=2,prompt=100..2000,output=200"
        )
    return _from_distribution(text)


# ---- files ----------------------------------------------------------------------------------------------------------


def _from_file(path: Path) -> Workload:
    data = read_small_file(path, PrecastError, MAX_FILE_BYTES, "a workload")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise PrecastError(f"{path} is not UTF-8 text (byte {error.start})") from None
    workload = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                workload.append(_request(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise PrecastError(f"{path}, line {number}: {error}") from None
    if not 0 < len(workload) <= MAX_REQUESTS:
        raise PrecastError(f"{path} has {len(workload)} requests; a workload has 1 … {MAX_REQUESTS}")
    return sorted(workload, key=lambda request: request.arrival)


def _request(value: Any) -> WorkloadRequest:
    """Raises ValueError, whose text says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError('expected an object like {"arrival": 0.5, "prompt_tokens": 300, "output_tokens": 80}')
    if unknown := sorted(value.keys() - FIELDS):
        raise ValueError(f"{unknown[0]} is not known; {', '.join(sorted(FIELDS))} are")
    ids = value.get("prompt_token_ids")
    if ids is not None:
        if not isinstance(ids, list) or not ids or not all(type(i) is int and -(2**31) <= i < 2**31 for i in ids):
            raise ValueError("prompt_token_ids must be a list of token ids")
        if {"prompt_tokens", "shared_prefix_tokens", "prefix"} & value.keys():
            raise ValueError("give either prompt_token_ids, or prompt_tokens with its shared prefix")
    salt = value.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise ValueError("cache_salt must be a text")
    return WorkloadRequest(
        arrival=_seconds(value.get("arrival", 0.0)),
        prompt_tokens=len(ids) if ids is not None else _count(value, "prompt_tokens", 1, None),
        output_tokens=_count(value, "output_tokens", 1, None),
        prompt_token_ids=None if ids is None else tuple(ids),
        max_tokens=_count(value, "max_tokens", 1, 0),
        shared_prefix_tokens=_count(value, "shared_prefix_tokens", 0, 0),
        prefix=_count(value, "prefix", 0, 0),
        priority=_count(value, "priority", -MAX_TOKENS, 0),
        cache_salt=salt,
    )


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1e9:
        raise ValueError(f"arrival is {value!r}; it must be seconds from the start, 0 or more")
    return float(value)


def _count(value: dict[str, Any], name: str, least: int, otherwise: int | None) -> int:
    if name not in value and otherwise is not None:
        return otherwise
    count = value.get(name)
    if type(count) is not int or not least <= count <= MAX_TOKENS:
        raise ValueError(f"{name} is {count!r}; it must be a number from {least} to {MAX_TOKENS}")
    return count


# ---- distributions --------------------------------------------------------------------------------------------------

Draw = Callable[["np.random.Generator"], int]


def _from_distribution(text: str) -> Workload:
    import numpy as np

    parts = dict(_parts(text))
    random = np.random.default_rng(_whole(parts, "seed", 0, 2**32, 0))
    requests = _whole(parts, "requests", 1, MAX_REQUESTS, 100)
    gap = _gap(parts.pop("rate", "inf"))
    prompt, output = _lengths("prompt", parts.pop("prompt", "256")), _lengths("output", parts.pop("output", "128"))
    share, prefix = _prefix(parts.pop("prefix", "0x0"))
    if parts:
        raise PrecastError(
            f"{next(iter(parts))} is no part of a workload; requests, rate, prompt, output, prefix and seed are"
        )
    workload, arrival = [], 0.0
    for _ in range(requests):
        arrival += float(random.exponential(gap)) if gap > 0 else 0.0
        request = WorkloadRequest(arrival, prompt(random), output(random))
        shares = random.random() < share
        workload.append(replace(request, shared_prefix_tokens=min(prefix, request.prompt_tokens) if shares else 0))
    return workload


def _parts(text: str) -> list[tuple[str, str]]:
    """name=value, separated by commas that stand outside of brackets."""
    parts = []
    for part in re.findall(r"(?:[^,(]|\([^)]*\)?)+", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise PrecastError(f"the workload's part {part!r} is not like name=value")
        parts.append((name.strip(), value.strip()))
    return parts


def _whole(parts: dict[str, str], name: str, least: int, most: int, otherwise: int) -> int:
    value = parts.pop(name, str(otherwise))
    if not value.isascii() or not value.isdigit() or len(value) > 10 or not least <= int(value) <= most:
        raise PrecastError(f"the workload's {name} is {value}; it must be a number from {least} to {most}")
    return int(value)


def _gap(rate: str) -> float:
    """Mean seconds between arrivals, which are a Poisson process."""
    try:
        value = float(rate)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise PrecastError(f"the workload's rate is {rate}; it must be requests per second, or inf: all at once")
    return 1 / value


def _lengths(name: str, text: str) -> Draw:
    """N, LOW..HIGH (uniform), or lognormal(MEDIAN,SIGMA,MOST)."""
    if match := re.fullmatch(r"(\d{1,8})(?:\.\.(\d{1,8}))?", text, re.ASCII):
        low = int(match[1])
        high = int(match[2] or match[1])
        if 1 <= low <= high <= MAX_TOKENS:
            return lambda random: int(random.integers(low, high + 1))
    number = r"\s*(\d{1,8}(?:\.\d{1,8})?)\s*"
    if match := re.fullmatch(rf"lognormal\({number},{number},{number}\)", text, re.ASCII):
        median, sigma, most = float(match[1]), float(match[2]), int(float(match[3]))
        if median >= 1 and sigma <= 10 and 1 <= most <= MAX_TOKENS:
            return lambda random: int(min(most, max(1, median * math.exp(sigma * random.standard_normal()))))
    raise PrecastError(
        f"the workload's {name} is {text}; it must be like 300, 100..2000 (evenly) or lognormal(300,0.8,4000): median, "
        "sigma, and the most"
    )


def _prefix(text: str) -> tuple[float, int]:
    match = re.fullmatch(r"([01](?:\.\d{1,8})?)x(\d{1,8})", text, re.ASCII)
    if match is None or float(match[1]) > 1 or int(match[2]) > MAX_TOKENS:
        raise PrecastError(
            f"the workload's prefix is {text}; it must be like 0.7x1200: the share of requests that have the prefix, "
            "and its tokens"
        )
    return float(match[1]), int(match[2])


def refuse_unfit(workload: Workload, max_seq_len: int) -> None:
    """Raises RequestError for a request that is too long for an engine: before its tokens are made."""
    for number, request in enumerate(workload, 1):
        tokens = request.prompt_tokens + max(request.output_tokens, request.max_tokens)
        if tokens > max_seq_len:
            raise RequestError(
                f"request {number} of the workload has {tokens} tokens with its answer, and the engine takes "
                f"{max_seq_len} (max_seq_len); build it for more, or shorten the workload's requests"
            )
