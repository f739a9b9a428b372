"""Whether memory stays flat and no page is lost under a long random load.

    python -m tests.perf.soak MODEL [--requests 10000] [--seed 0] [--threads N]

Random requests (lengths, n, priorities, shared prefixes, salts, timeouts, streams and lists) from four threads (`LLM`)
and from 24 tasks of an event loop (`AsyncLLM`) at a time, over pools so small that sequences are paused and pages
evicted; 1 % of them are cancelled at random moments. Prints anonymous resident memory after the first fifth of the
requests and at the end (within 2 %), pages at idle (each free or in the prefix cache), and events of the cache (what
was stored and not removed is what is cached, none lost). Exits with 1 when one of these does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from precast import LLM, AsyncLLM, SamplingParams
from precast.runtime.options import RuntimeOptions
from precast.runtime.output import RequestOutput
from precast.runtime.request_options import RequestOptions

THREADS, TASKS = 4, 24
CANCELLED, UNREAD = 0.01, 0.01
"""Shares of the requests."""

KV_EVENTS = 1 << 16
ALLOWED_GROWTH = 0.02


@dataclass
class Request:
    prompt: list[int]
    params: SamplingParams
    options: RequestOptions
    stream: bool
    cancel_after: int | None
    """Parts of the stream."""
    is_read: bool


@dataclass
class Tally:
    requests: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, output: RequestOutput | None) -> None:
        """`output`: the last one; None: its consumer left."""
        reasons = [str(o.finish_reason) for o in output.outputs] if output is not None else ["left"]
        with self._lock:
            self.requests += 1
            for reason in reasons:
                self.reasons[reason] = self.reasons.get(reason, 0) + 1


def random_requests(seed: int, count: int, vocab_size: int) -> Iterator[Request]:
    draw = random.Random(seed)
    prefixes = [[draw.randrange(vocab_size) for _ in range(draw.randrange(8, 120))] for _ in range(12)]
    for _ in range(count):
        prefix = draw.choice(prefixes)[: draw.randrange(120)] if draw.random() < 0.7 else []
        cancelled, unread = draw.random() < CANCELLED, draw.random() < UNREAD
        n = draw.choice([1, 1, 1, 1, 2, 3])
        yield Request(
            prompt=prefix + [draw.randrange(vocab_size) for _ in range(draw.randrange(1, 40))],
            params=SamplingParams(
                max_tokens=draw.randrange(1, 65),
                temperature=draw.choice([0.0, 0.8, 1.5]) if n == 1 else 0.8,
                n=n,
                logprobs=draw.choice([None, None, 2]),
                stop=draw.choice([None, None, ["e"]]),
                seed=draw.randrange(1 << 32),
                ignore_eos=draw.random() < 0.5,
            ),
            options=RequestOptions(
                priority=draw.randrange(-2, 3),
                cache_salt=draw.choice([None, None, None, "a", "b"]),
                timeout=0.02 if draw.random() < 0.005 else None,
            ),
            stream=cancelled or unread or draw.random() < 0.5,
            cancel_after=draw.randrange(4) if cancelled else None,
            is_read=not unread,
        )


def ask(llm: LLM, requests: Iterator[Request], lock: threading.Lock, tally: Tally) -> None:
    """Answers requests one after the other until there are no more."""
    while True:
        with lock:
            request = next(requests, None)
        if request is None:
            return
        if not request.stream:
            tally.add(llm.generate([request.prompt], request.params, options=request.options)[0])
            continue
        stream = llm.stream(request.prompt, request.params, options=request.options)
        last = None
        for number, output in enumerate(stream if request.is_read else ()):
            if number == request.cancel_after:
                break
            last = output
        stream.close()
        tally.add(last if last is not None and last.finished else None)


async def ask_async(llm: AsyncLLM, requests: Iterator[Request], tally: Tally) -> None:
    for request in requests:
        if not request.stream and request.cancel_after is None:
            tally.add((await llm.generate([request.prompt], request.params, options=request.options))[0])
            continue
        stream = llm.stream(request.prompt, request.params, options=request.options)
        last, number = None, 0
        async for output in stream:
            if number == request.cancel_after or not request.is_read:
                break
            last, number = output, number + 1
        await stream.aclose()
        tally.add(last if last is not None and last.finished else None)


def run_threads(llm: LLM, requests: Iterator[Request], tally: Tally) -> None:
    lock = threading.Lock()
    threads = [threading.Thread(target=ask, args=(llm, requests, lock, tally)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def run_tasks(llm: AsyncLLM, requests: Iterator[Request], tally: Tally) -> None:
    await asyncio.gather(*(ask_async(llm, requests, tally) for _ in range(TASKS)))


class Cache:
    """What the events say is cached."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.stored = self.lost = 0

    def follow(self, llm: LLM | AsyncLLM) -> None:
        events, lost = llm.kv_events()
        self.lost += lost
        for event in events:
            if event.kind == "stored":
                self.nodes.add(event.node)
                self.stored += 1
            else:
                self.nodes.remove(event.node)


@contextmanager
def followed(llm: LLM | AsyncLLM, cache: Cache) -> Iterator[None]:
    """Reads the events meanwhile, so that few are kept."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(0.05):
            cache.follow(llm)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def num_pending(llm: LLM | AsyncLLM) -> int:
    """Requests whose last output has not been handed on."""
    return len(llm._router._pending) if isinstance(llm, LLM) else len(llm._pending)


async def idle(llm: LLM | AsyncLLM) -> None:
    """Waits for what was cancelled, which ends within a step; in the event loop that hands on AsyncLLM's outputs."""
    deadline = time.monotonic() + 60
    while (stats := llm.stats()).running + stats.waiting + num_pending(llm) > 0 and time.monotonic() < deadline:
        await asyncio.sleep(0.001)


def faults_at_idle(llm: LLM | AsyncLLM, cache: Cache) -> list[str]:
    """What is wrong with an engine that has nothing to do."""
    stats = llm.stats()
    cache.follow(llm)
    faults = []
    if stats.running + stats.waiting + stats.queued_requests + stats.queued_tokens > 0:
        faults.append(f"{stats.running} run and {stats.waiting} wait at idle")
    if not stats.free_pages + stats.cached_pages == stats.available_pages == stats.num_pages:
        faults.append(
            f"of {stats.num_pages} pages {stats.free_pages} are free, {stats.cached_pages} cached, "
            f"{stats.available_pages} available"
        )
    if cache.lost > 0 or len(cache.nodes) != stats.cached_pages:
        faults.append(f"events tell of {len(cache.nodes)} cached pages (and lost {cache.lost}): {stats.cached_pages}")
    if left := num_pending(llm):
        faults.append(f"{left} requests are still waited for")
    return faults


def anonymous_bytes() -> int:
    """Resident, after what is free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def soak(
    model: str | Path, count: int, seed: int, threads: int | None, allowed_growth: float | None = ALLOWED_GROWTH
) -> tuple[list[str], Tally]:
    """Runs the load and prints what it finds; → what is wrong. allowed_growth None: of no matter."""
    options = RuntimeOptions(
        num_threads=threads,
        kv_cache_memory=pool_memory(model),
        scheduler_policy="max_utilization",
        max_overtakes=4,
        kv_events=KV_EVENTS,
    )
    llm, other = (
        LLM(model, **options, request_order="priority"),
        AsyncLLM(model, **options, request_order="cache_aware"),
    )
    tally = Tally()
    caches = Cache(), Cache()
    faults: list[str] = []
    memory: list[int] = []
    rounds = 10
    with asyncio.Runner() as runner:
        for number in range(rounds):
            requests = random_requests(seed + number, count // rounds, llm.limits.vocab_size)
            with followed(llm, caches[0]):
                run_threads(llm, islice(requests, count // rounds // 2), tally)
            with followed(other, caches[1]):
                runner.run(run_tasks(other, requests, tally))
            for engine, cache in zip((llm, other), caches, strict=True):
                runner.run(idle(engine))
                faults += faults_at_idle(engine, cache)
            memory.append(anonymous_bytes())
            print(f"{tally.requests} requests, {memory[-1] / 2**20:.2f} MiB", flush=True)
        for name, engine, cache in (("LLM", llm, caches[0]), ("AsyncLLM", other, caches[1])):
            stats = engine.stats()
            print(
                f"{name}: {stats.steps} steps, {stats.pauses} pauses, {stats.finished} requests; "
                f"{stats.num_pages} pages, {stats.free_pages} free, {stats.cached_pages} cached; "
                f"{cache.stored} pages stored, {cache.stored - len(cache.nodes)} removed"
            )
        if not (llm.close(drain=True) and runner.run(other.close(drain=True))):
            faults.append("an idle engine had something to cancel")
    warm, end = memory[rounds // 5 - 1], memory[-1]
    print(f"finish reasons: {dict(sorted(tally.reasons.items()))}")
    print(f"anonymous memory: {warm} bytes after a fifth, {end} at the end ({(end / warm - 1) * 100:+.2f} %)")
    if allowed_growth is not None and end > warm * (1 + allowed_growth):
        faults.append(f"memory grew by {(end / warm - 1) * 100:.2f} %")
    if tally.requests != count:
        faults.append(f"{tally.requests} of {count} requests came to an end")
    return faults, tally


def pool_memory(model: str | Path) -> int:
    """Of so few pages that sequences are paused."""
    with LLM(model, num_threads=1) as llm:
        return 20 * sum(group.page_bytes for group in llm.limits.groups)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of each engine")
    given = parser.parse_args()
    faults, _ = soak(given.model, given.requests, given.seed, given.threads)
    print("\n".join(faults) or "nothing grew, nothing is lost")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
