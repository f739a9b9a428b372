"""Breaks scheduler and cache on purpose, one line at a time, and tells which of these the C++ tests do not notice.

    python tests/cpp/broken.py [WORDS]     only the breaks whose description has all of these words

Builds the few files that scheduler and cache consist of, with the tests of these, in a temporary folder: nothing of the
working tree changes. Needs g++ (or $CXX) and doctest. Exit code 1 when a break goes unnoticed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "runtime/core"
SOURCES = [
    "admission",
    "cache_key",
    "check",
    "counting_backend",
    "kv_cache",
    "kv_check",
    "kv_prefix",
    "page_pool",
    "prefill_share",
    "radix_tree",
    "request_queue",
    "scheduler",
    "simulator",
    "step_check",
    "step_cost",
]
TESTS = [
    "main",
    "test_kv_cache",
    "test_radix_tree",
    "test_scheduler",
    "test_simulated_schedules",
    "test_simulation",
    "test_simulator",
]
FLAGS = ["-std=c++20", "-O1", "-DPRECAST_DEBUG_CHECKS=1", f"-I{ROOT}"]
SECONDS = 300
"""A test run that takes longer hangs: that is noticed too."""

BREAKS = """
kv_prefix.cpp: a full hit leaves no row to run
- ) : s.length() - 1;
+ ) : s.length();
kv_prefix.cpp: a copy is a token short
- page, match_.partial_tokens}
+ page, match_.partial_tokens - 1}
kv_prefix.cpp: who computes a page again keeps its own
- if (own < 0 || own == kept) continue;
+ continue;
kv_prefix.cpp: a hit does not ask for window pages
- if (groups_[g].layers.window == 0) return true;
+ return true;
kv_prefix.cpp: inner nodes are evicted
- (node.children.empty() && node.holders == 0);
+ true;
kv_prefix.cpp: retention priorities do not count
- std::tie(priority, used, id) < std::tie(other.priority, other.used, other.id);
+ std::tie(used, id) < std::tie(other.used, other.id);
kv_prefix.cpp: logits of a prompt come from the cache
- const int32_t most = s.prompt_logits ?
+ const int32_t most = false ?
kv_cache.cpp: a window loses its last page early
- position - window + 1)
+ position - window + 2)
kv_cache.cpp: windowed pages that are shared count once
- if (g.layers.window == 0) return
+ return
kv_cache.cpp: a promise is not given back
- groups_[g].promised -= table.reserved;
+
kv_cache.cpp: a page that is not available is promised
- + spare <= num_available(
+ + spare <= 1 + num_available(
kv_cache.cpp: who was used last is evicted first
- node->pages[g].used = now_;
+ node->pages[g].used = ~now_;
page_pool.cpp: a shared page stays evictable
- if (is_evictable(page)) --evictable_;
  ++counts_[static_cast<size_t>(page)];
+ ++counts_[static_cast<size_t>(page)];
page_pool.cpp: a released page is not free
- if (count(page) == 0) free_.push_back(page);
+ static_cast<void>(page);
radix_tree.cpp: only one neighbour is compared
- before : {false, true}
+ before : {false}
radix_tree.cpp: any common token will do
- if (common > most) {
+ if (common > 0) {
radix_tree.cpp: a leaf stays beside its extension
- return before->tokens.size() < tokens.size()
+ return false
cache_key.cpp: salts and adapters share keys
- key += kind + std::to_string(value.size()) + ":" + value;
+ key += (kind, value);
scheduler.cpp: copies are lost
- cache_.take_copies(batch.copies);
+
scheduler.cpp: who started first is paused
- pause(*running_.back());
+ pause(*running_.front());
scheduler.cpp: a prefix is computed twice
- if (common - cached >= limits_.page_tokens) return true;
+
scheduler.cpp: a chunk is longer than allowed
- if (most - sequence->num_computed > max_chunk_)
+ if (most - sequence->num_computed > 2 * max_chunk_)
scheduler.cpp: a static batch decodes before all prompts are computed
- if (!decode_waits()) schedule_decode(batch);
+ schedule_decode(batch);
scheduler.cpp: who waits behind the first candidates is forgotten
- return queue_.size() < before && before > candidates_.size();
+ return false;
scheduler.cpp: who is finished stays in the queue
- if (sequence.state == SequenceState::waiting) queue_.remove(&sequence);
+
scheduler.cpp: a step has a row too many
- share_prefill(prefill_order_, budget_ -
+ share_prefill(prefill_order_, 1 + budget_ -
simulator.cpp: a cancelled request goes on
- result_.outputs[request].cancelled = true;
+ continue;
step_cost.cpp: windows do not count
- const double most = window == 0 ? to : window;
+ const double most = to;
scheduler.cpp: logits of a prompt come twice
- std::max(sequence.num_prompt_logits, std::min(chunk.end, sequence.num_prompt - 1));
+ 0;
admission.cpp: nothing is left over for those who run
- num_running == 0 ? 0 : num_running + 1
+ 0
admission.cpp: the promise is not to completion
- return {sequence.max_length - 1, 0};
+ return {sequence.length(), 0};
admission.cpp: a batch is filled up
- || num_running == 0;
+ || num_running >= 0;
request_queue.cpp: overtaking is not counted
- ++other->num_overtaken == max_overtakes_;
+ false;
request_queue.cpp: paused ones are urgent, but forgotten
- out = paused_;
+ out.clear();
request_queue.cpp: priorities do not count
- return a->priority != b->priority ?
+ return false ?
request_queue.cpp: the least cached goes first
- return a.first > b.first;
+ return a.first < b.first;
prefill_share.cpp: chunks end inside pages
- std::max(end / page_tokens * page_tokens, begin);
+ std::max(end, begin);
prefill_share.cpp: the first takes all
- std::min(border, share->end + left)
+ share->end + left + 0 * border
"""
"""`file: what is wrong`, then what stands in the file behind `- ` and what stands there instead behind `+ `."""


def breaks() -> list[tuple[str, str, str, str]]:
    """(file, what is wrong, what is right, what stands there instead) of each."""
    found = re.findall(r"^(\S+): (.*)\n- ((?:.*\n)+?)\+ ?(.*)\n", BREAKS, re.MULTILINE)
    assert len(found) == BREAKS.count("\n- ")
    return [(name, what, right.rstrip("\n"), wrong) for name, what, right, wrong in found]


def compiled(source: Path, target: Path) -> Path:
    command = [os.environ.get("CXX", "g++"), *FLAGS, "-c", str(source), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def passes(objects: list[Path], program: Path) -> bool:
    """Links the objects and runs the tests."""
    subprocess.run([os.environ.get("CXX", "g++"), *map(str, objects), "-o", str(program), "-pthread"], check=True)
    try:
        found = subprocess.run([program, "--no-breaks"], capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return found.returncode == 0


def goes_unnoticed(number: int, folder: Path, whole: dict[str, Path]) -> bool:
    """Whether the tests pass with break `number`."""
    name, what, right, wrong = breaks()[number]
    own = folder / str(number)
    broken = own / "runtime/core" / name
    broken.parent.mkdir(parents=True)
    text = (CORE / name).read_text()
    if text.count(right) != 1:
        raise SystemExit(f"{what}: {name} has {text.count(right)} times {right!r}; correct this list")
    broken.write_text(text.replace(right, wrong))
    objects = whole | {broken.stem: compiled(broken, own / "broken.o")}
    return passes(list(objects.values()), own / "tests")


def source_of(name: str) -> Path:
    return (ROOT / "tests/cpp" if name in TESTS else CORE) / f"{name}.cpp"


def main(words: list[str]) -> int:
    chosen = [i for i, (_, what, *_) in enumerate(breaks()) if all(word in what for word in words)]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as threads:
        folder = Path(temporary)
        names = SOURCES + TESTS
        made = threads.map(lambda name: compiled(source_of(name), folder / f"{name}.o"), names)
        whole = dict(zip(names, made, strict=True))
        if not passes(list(whole.values()), folder / "tests"):
            print("the tests fail without any break")
            return 1
        verdicts = list(threads.map(lambda i: goes_unnoticed(i, folder, whole), chosen))
    for i, unnoticed in zip(chosen, verdicts, strict=True):
        print(f"{'UNNOTICED' if unnoticed else 'noticed  '}  {breaks()[i][1]}")
    return 1 if any(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
