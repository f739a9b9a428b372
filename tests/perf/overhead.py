"""What a step costs outside the model, until the consumer in Python holds the text.

    python tests/perf/overhead.py [--threads N] [--tokens 200]

Decode steps of a small random Llama (6 layers, 512 wide, vocabulary of 320: sampling is measured by sampling_bench.cpp)
with 1 request running, and with 64 running and 1,000 waiting. For each step, from its begin to the time when the
consumer holds the last text of the step, less what the model took: scheduling, sampling, text, the way to Python.
Consumers: `poll` (one thread on the executor's file descriptor), `LLM` (a thread for each stream; only of one request)
and `AsyncLLM` (a task for each stream). Prints medians and 90th percentiles, and what the loop alone takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from precast import LLM, AsyncLLM, SamplingParams
from precast._native import runtime as native
from precast.builder import BuildOptions, build
from precast.builder.build import cpu_model
from precast.quantize import ConvertOptions, convert
from precast.runtime.request_options import RequestOptions
from precast.runtime.session import Session
from tests.tiny import VOCAB, tiny_chat_model

PROMPT = 16
SKIPPED = 10
"""Steps at the beginning, in which threads and caches warm up."""

Held = dict[int, list[float]]
"""Of each request, when the consumer held its first token, its second, …"""


def write_model(folder: Path) -> None:
    """Whose every token is whole text, so that none is held back until the next step."""
    model = tiny_chat_model(folder, hidden_size=512, intermediate_size=1024, num_hidden_layers=6)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        for token in range(VOCAB):
            if "\ufffd" in (text := tokenizer.decode([token])) or not text:
                model.lm_head.weight[token] = 0
    model.save_pretrained(folder)


def consume_by_poll(session: Session, running: int, waiting: int, params: SamplingParams) -> Held:
    held: Held = defaultdict(list)
    executor = session.executor
    executor.pause()
    first = {session.submit([i + 10] * PROMPT, params, True, RequestOptions()) for i in range(running)}
    rest = [session.submit([9] * PROMPT, params, True, RequestOptions()) for _ in range(waiting)]
    executor.resume()
    while first:
        select.select([executor.fileno()], [], [])
        for delta in executor.poll():
            if delta.id in first and delta.text is not None:
                held[delta.id] += [time.time()] * len(delta.token_ids)
                if delta.finished:
                    first.remove(delta.id)
    for request in rest:
        executor.cancel(request)
    return held


def consume_by_stream(llm: LLM, params: SamplingParams) -> Held:
    held: Held = defaultdict(list)
    for output in llm.stream([10] * PROMPT, params):
        if output.text is not None:
            held[0] += [time.time()] * len(output.token_ids)
    return held


async def consume_by_tasks(llm: AsyncLLM, running: int, waiting: int, params: SamplingParams) -> Held:
    held: Held = defaultdict(list)

    async def consume(token: int) -> None:
        async for output in llm.stream([token] * PROMPT, params):
            if output.text is not None:
                held[token] += [time.time()] * len(output.token_ids)

    llm.pause()
    first = [asyncio.create_task(consume(i + 10)) for i in range(running)]
    while llm.stats().queued_requests < running:
        await asyncio.sleep(0.01)
    rest = [asyncio.create_task(consume(9)) for _ in range(waiting)]
    while llm.stats().queued_requests < running + waiting:
        await asyncio.sleep(0.01)
    llm.resume()
    await asyncio.gather(*first)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    held.pop(9, None)
    return held


def report(name: str, executor: native.Executor, held: Held, running: int) -> None:
    """Compares what was held with the steps that made it: token k of every request comes from step k."""
    steps = [s for s in executor.iteration_stats()[0] if s.inflight_batching_stats.num_gen_requests == running]
    assert all(s.inflight_batching_stats.num_context_requests == 0 for s in steps)
    assert len(held) == running
    last = np.array([max(times) for times in zip(*(times[1:] for times in held.values()), strict=True)])
    count = min(len(steps), len(last))
    own = np.array([[s.timestamp, s.iter_latency_ms / 1e3, s.model_latency_ms / 1e3] for s in steps[SKIPPED:count]])
    ended, whole, model = own.T
    until = last[SKIPPED:count] - (ended - whole) - model
    loop = whole - model
    print(
        f"{name:34} {np.median(until) * 1e6:8.0f} {np.quantile(until, 0.9) * 1e6:8.0f} {np.median(loop) * 1e6:8.0f}"
        f" {np.median(model) * 1e6:10.0f} {len(until):6}"
    )


def wake_up() -> float:
    """Median seconds from a write until another process that waits for it in select has the time: this machine's own
    share of what is measured, because a consumer sleeps while the model runs."""
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        for _ in range(300):
            time.sleep(0.002)
            os.write(begin, np.float64(time.time()).tobytes())
        os._exit(0)
    taken = []
    for _ in range(300):
        select.select([end], [], [])
        now = time.time()
        taken.append(now - np.frombuffer(os.read(end, 8))[0])
    os.waitpid(child, 0)
    return float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="default: as many as CPUs")
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    params = SamplingParams(max_tokens=given.tokens, temperature=0, ignore_eos=True)
    print(f"{cpu_model()}, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"of which a wake-up of a sleeping thread: {wake_up() * 1e6:.0f} us")
    print(f"{'us':34} {'median':>8} {'p90':>8} {'loop':>8} {'(model)':>10} {'steps':>6}")
    with tempfile.TemporaryDirectory() as folder:
        model, checkpoint, engine = (Path(folder) / name for name in ("model", "checkpoint", "engine"))
        write_model(model)
        convert(model, checkpoint, ConvertOptions("int8"))
        build(checkpoint, engine, BuildOptions(max_batch_size=64, max_num_tokens=64 * PROMPT, max_seq_len=1024))
        for running, waiting in ((1, 0), (64, 1000)):
            scene = f"{running} running, {waiting} waiting: "
            session = Session(engine, num_threads=given.threads)
            report(scene + "poll", session.executor, consume_by_poll(session, running, waiting, params), running)
            session.executor.close()
            if running == 1:
                with LLM(engine, num_threads=given.threads) as llm:
                    report(scene + "LLM", llm._session.executor, consume_by_stream(llm, params), running)
            asyncio.run(report_tasks(scene + "AsyncLLM", engine, given.threads, running, waiting, params))


async def report_tasks(
    name: str, engine: Path, threads: int | None, running: int, waiting: int, params: SamplingParams
) -> None:
    llm = AsyncLLM(engine, num_threads=threads)
    report(name, llm._session.executor, await consume_by_tasks(llm, running, waiting, params), running)
    await llm.close()


if __name__ == "__main__":
    main()
