"""How much memory the KV pool may take: the machine's, the cgroup's, the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._native import runtime
from precast.errors import EngineError
from precast.runtime.kv_pools import num_pages
from precast.runtime.memory import available_memory

MiB = 1 << 20


def machine(root: Path, cgroup: str = "", files: dict[str, str] | None = None) -> Path:
    content = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4096 kB\n", "proc/self/cgroup": cgroup}
    for name, text in (content | (files or {})).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_a_cgroup_the_machine_decides(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path)) == 4 * MiB


def test_the_tightest_cgroup_on_the_way_up_decides_and_file_cache_counts_as_free(tmp_path: Path) -> None:
    v2 = {
        "sys/fs/cgroup/a/memory.max": f"{3 * MiB}\n",
        "sys/fs/cgroup/a/memory.current": f"{2 * MiB}\n",
        "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {MiB // 2}\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "1\n",
    }
    assert available_memory(machine(tmp_path, "0::/a/b\n", v2)) == MiB + MiB // 2


def test_a_v1_cgroup_and_a_path_that_is_not_here(tmp_path: Path) -> None:
    v1 = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * MiB}",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{MiB}",
    }
    assert available_memory(machine(tmp_path, "4:memory:/host/path\n0::/\n", v1)) == MiB


def limits(page_tokens: int = 32) -> runtime.ModelLimits:
    """8 bytes a page."""
    backend = runtime.CountingBackend(max_batch_size=4, max_seq_len=100, page_tokens=page_tokens)
    return backend.limits


def test_the_pool_is_what_the_limits_can_use_within_the_budget() -> None:
    assert num_pages(limits(), None, 1 << 40) == [16]
    assert num_pages(limits(), None, 100) == [6]  # half of it
    assert num_pages(limits(), 80, 1) == [10]
    assert num_pages(limits(), 8, 1) == [1]
    with pytest.raises(EngineError, match="one KV page of every layer takes 8 bytes, and there are 7"):
        num_pages(limits(), 7, 1 << 40)


def test_pools_of_layer_groups_hold_equally_many_typical_sequences() -> None:
    # Four windows of 64 tokens are 8 pages of full attention; in the window, with a page of rows, are 4 at most.
    backend = runtime.CountingBackend(max_batch_size=4, max_seq_len=1024, max_num_tokens=64, windows=[0, 64])
    assert num_pages(backend.limits, None, 1 << 40) == [4 * 32, 4 * 32 * 4 // 8]
    assert num_pages(backend.limits, 12 * 8 * 5, 0) == [8 * 5, 4 * 5]
    with pytest.raises(EngineError, match="one KV page of every layer takes 16 bytes, and there are 15"):
        num_pages(backend.limits, 15, 0)
    # Where the window is never full, it is as if there were none; without full attention the window is all there is.
    backend = runtime.CountingBackend(max_batch_size=4, max_seq_len=128, max_num_tokens=64, windows=[64])
    assert num_pages(backend.limits, None, 1 << 40) == [16]
