"""An engine beside the machine's limits and beside llama.cpp, in one run, on one page.

    python -m tests.perf.speed ENGINE PEER.gguf [--bf16 ENGINE] [--kv-int8 ENGINE] [--json FILE] [--plot FILE.svg]

Prefill of 512 and 4,096 tokens; decode of 1, 4, 16 and 32 sequences at a short context, and of one at 2k and 4k. Rounds
are interleaved: in each, every case is measured with everything that is compared. PEER.gguf holds a model of the same
shape, quantized as the engine is (int8: Q8_0). A measurement during which other processes took more than
--others-at-most of the CPUs is made again; when there is no idle time, or what the machine computes at most differs
during the run, or its limits lie below those that the same CPU has reached elsewhere, the run is void: the page says
so, and the program ends with 1. Reads from memory are probed around each measurement, and its share is that of the
higher of the two: other machines on the same host take a part of them, now more and now less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path

from precast._native import runtime as native
from precast.benchmark.bound import StepWork
from precast.benchmark.latency import decode_steps, decode_work, prefill_work
from precast.benchmark.subject import Subject
from precast.builder.machine_limits import Limits, Work
from precast.errors import PrecastError
from tests.perf import machine, page
from tests.perf.cases import BF16, BF16_CASES, CASES, KV_INT8, OURS, PEER, PIECE, SHORT, Case, Measured
from tests.perf.peer import Peer

FEWEST_STEPS, MOST_STEPS, DECODE_SECONDS = 8, 64, 1.0
"""A round of decode takes as many steps as last about so long."""

PROMPTS = 3
"""Of a round: the first meets memory and caches that others have used."""


class Ours:
    """An engine, with prompts whose K/V it has cached."""

    def __init__(self, engine: Path, given: argparse.Namespace) -> None:
        self.engine = engine
        self.subject = Subject(engine, given.threads, weights_memory=given.weights_memory)
        self.work = StepWork(engine)
        self._long: list[int] = []
        self._short = [self.subject.tokens(SHORT) for _ in range(self.subject.limits.max_batch_size)]

    def holds(self, case: Case) -> bool:
        """Whether the engine was built for it."""
        limits = self.subject.limits
        length = (case.prompt or case.context + MOST_STEPS) + 2
        return bool(case.batch <= limits.max_batch_size and length <= limits.max_seq_len)

    def prefill(self, tokens: int) -> list[float]:
        (output,) = self.subject.run([self.subject.tokens(tokens)], 1)
        return [output.first_token_seconds]

    def extend(self, at: int) -> list[float]:
        """Computes a piece of the long prompt behind the first `at` tokens; a second time, other tokens."""
        prompt = self._long[:at] + self.subject.tokens(PIECE)
        (output,) = self.subject.run([prompt], 1)
        self._long = prompt
        return [output.first_token_seconds]

    def decode(self, case: Case, steps: int) -> list[float]:
        short = case.context == SHORT
        prompts = self._short[: case.batch] if short else [self._long[: case.context]]
        return decode_steps(self.subject, prompts, steps)

    def work_of(self, case: Case, steps: int) -> list[Work]:
        if not self.work.is_known:
            return []
        if case.prompt:
            return prefill_work(self.work, case.prompt, self.subject.limits.max_num_tokens)
        return [decode_work(self.work, case.batch, case.context, steps)]


class Run:
    """All of it, in the order in which it is measured."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.engines = {OURS: Ours(given.engine, given)}
        for name, engine in ((BF16, given.bf16), (KV_INT8, given.kv_int8)):
            if engine is not None:
                self.engines[name] = Ours(engine, given)
        ours = self.engines[OURS]
        self.cases = [case for case in CASES if ours.holds(case)]
        if not self.cases:
            sys.exit(f"{given.engine} holds none of the cases: build it with a longer --max-seq-len")
        self.contexts = sorted({c.context for c in self.cases if c.context > SHORT})
        self.longest = max([c.prompt for c in self.cases if c.prompt > PIECE] + self.contexts, default=0)
        kept = {n for n in (*self.contexts, self.longest) if 0 < n <= given.peer_prompts}
        self.peer = Peer(given.peer_python, given.peer, sorted(kept))
        own = [os.getpid(), self.peer.pid]
        self.watch = machine.Watch(own, given.others_at_most, given.patience)
        self.limits: list[Limits] = []
        self.found: dict[tuple[str, Case], Measured] = {}
        self.peer_threads: dict[str, dict[int, float]] = {}
        """Tokens per second of llama.cpp by its threads, of prompts and of decode."""
        self.steps: dict[Case, int] = {}

    def measure(self) -> None:
        """Raises BusyError."""
        self._prepare()
        self._choose_peer_threads()
        self._long_prompt([name for name in self._with_long_prompt if name in self._counted])
        for case in self.cases:
            if not case.prompt:
                once = partial(self._once, OURS, case, FEWEST_STEPS)
                step = statistics.median(self.watch.undisturbed(once))
                self.steps[case] = min(MOST_STEPS, max(FEWEST_STEPS, round(DECODE_SECONDS / step)))
        for number in range(self.given.rounds):
            self._say(f"round {number + 1} of {self.given.rounds}")
            for case in self.cases:
                if case.prompt <= PIECE:
                    self._round(case)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _prepare(self) -> None:
        """What may be disturbed: K/V of prompts that only decode needs, and first runs."""
        self._long_prompt([name for name in self._with_long_prompt if name not in self._counted])
        for case in self.cases:
            for name in self._compared(case):
                if case.prompt <= PIECE and case.context <= SHORT:
                    self._say(f"warm-up: {name}, {case.name}")
                    self._once(name, case, 1)

    def _probe(self) -> Limits:
        found = self.watch.undisturbed(partial(Limits().or_higher, self.given.threads))
        self.limits.append(found)
        return found

    def _choose_peer_threads(self) -> None:
        """The best of one and all, of prompts and of single tokens; llama.cpp has a setting for each."""
        for threads in sorted({1, self.given.threads}):
            self.peer.measure(threads=threads)
            prefill = self.watch.undisturbed(partial(self.peer.measure, prefill=SHORT))
            decode = self.watch.undisturbed(partial(self.peer.measure, decode=1, context=SHORT, steps=FEWEST_STEPS))
            self.peer_threads.setdefault("prompts", {})[threads] = SHORT / statistics.median(prefill)
            self.peer_threads.setdefault("decode", {})[threads] = 1 / statistics.median(decode)

    def best_threads(self, case: Case) -> int:
        """Of llama.cpp."""
        rates = self.peer_threads.get("prompts" if case.tokens > 1 else "decode", {})
        return max(rates, key=lambda threads: rates[threads], default=self.given.threads)

    @property
    def _with_long_prompt(self) -> list[str]:
        return [name for name in (OURS, PEER, KV_INT8) if name == PEER or name in self.engines]

    @property
    def _counted(self) -> list[str]:
        """Whose long prompt is measured, and not only computed for the decode behind it."""
        return [OURS] + ([PEER] if self.longest <= self.given.peer_prompts else [])

    def _long_prompt(self, names: list[str]) -> None:
        """Also the contexts that are decoded from afterwards."""
        case = Case(prompt=self.longest)
        self.peer.measure(threads=self.best_threads(case))
        for at in range(0, self.longest, PIECE):
            for name in names:
                if name == PEER and at + PIECE > self.given.peer_prompts:
                    continue
                self._say(f"{name}, prompt of {self.longest}: {at}")
                if name == PEER:
                    piece = partial(self.peer.measure, extend=PIECE, at=at)
                else:
                    piece = partial(self.engines[name].extend, at)
                if name not in self._counted:
                    piece()
                    continue
                work = self.engines[OURS].work_of(case, 0) if name == OURS else []
                found = self.found.setdefault((name, case), Measured(case, [[0.0]], work))
                found.rounds[0][0] += sum(self.watch.undisturbed(piece))
                found.limits = [machine.highest([*found.limits, self._probe()])] if work else []

    def _compared(self, case: Case) -> list[str]:
        names = [OURS] + ([PEER] if max(case.prompt, case.context) <= self.given.peer_prompts else [])
        names += [BF16] if case in BF16_CASES else []
        names += [KV_INT8] if case.context and case.batch == 1 else []
        return [name for name in names if name == PEER or name in self.engines]

    def _round(self, case: Case) -> None:
        steps = self.steps.get(case, 0)
        for name in self._compared(case):
            work = [] if name == PEER else self.engines[name].work_of(case, steps)
            found = self.found.setdefault((name, case), Measured(case, [], work))
            before = self._probe() if work else None
            found.rounds.append(self.watch.undisturbed(partial(self._once, name, case, steps)))
            if before is not None:
                found.limits.append(machine.highest([before, self._probe()]))

    def _once(self, name: str, case: Case, steps: int) -> list[float]:
        if case.prompt:
            return [second for _ in range(PROMPTS) for second in self._prompt(name, case.prompt)]
        if name != PEER:
            return self.engines[name].decode(case, steps)
        self.peer.measure(threads=self.best_threads(case))
        return self.peer.measure(decode=case.batch, context=case.context, steps=steps)

    def _prompt(self, name: str, tokens: int) -> list[float]:
        if name != PEER:
            return self.engines[name].prefill(tokens)
        self.peer.measure(threads=self.best_threads(Case(prompt=tokens)))
        return self.peer.measure(prefill=tokens)

    def reasons_against(self) -> list[str]:
        """Why the run is void; none: it is not."""
        reasons = [
            f"{name} of the probes differ by {share:.0%}"
            for name, share in machine.spread(self.limits).items()
            if share > self.given.probes_within and name != "read_bytes"
        ]
        known = machine.known_limits(machine.this_cpu(), self.given.threads)
        return reasons + (machine.lower_than_known(machine.highest(self.limits), known) if known else [])

    def close(self) -> None:
        self.peer.close()
        for engine in self.engines.values():
            engine.subject.executor.close()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("peer", metavar="PEER.gguf")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--bf16", type=Path, metavar="ENGINE", help="the same model with bf16 weights")
    parser.add_argument("--kv-int8", type=Path, metavar="ENGINE", help="the same engine with its KV cache in int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=native.available_cpus())
    parser.add_argument(
        "--peer-prompts", type=int, default=4096, help="most tokens of a prompt that llama.cpp is timed on"
    )
    parser.add_argument("--others-at-most", type=float, default=0.05, help="a share of all CPUs; 1: any")
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait for an idle machine, each time")
    parser.add_argument("--probes-within", type=float, default=0.1, help="share by which peaks may differ")
    parser.add_argument("--weights-memory", choices=("map", "copy"), default="map", help="as `precast run` takes it")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the roofline")
    return parser.parse_args()


def main() -> int:
    try:
        run = Run(options())
    except PrecastError as error:
        sys.exit(str(error))
    reasons: list[str] = []
    try:
        run.measure()
        reasons = run.reasons_against()
    except machine.BusyError as error:
        reasons = [str(error)]
    run.close()
    print(page.text(run, reasons))
    if run.given.json:
        run.given.json.write_text(json.dumps(page.values(run, reasons), indent=1) + "\n")
    if run.given.plot and run.limits:
        page.draw(run, run.given.plot)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
