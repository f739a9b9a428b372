"""The number of threads follows the affinity mask and the cgroup's quota, in both of the kernel's layouts."""

import os
from pathlib import Path

import pytest

from precast._native import runtime

CPUS = len(os.sched_getaffinity(0))


def system(root: Path, files: dict[str, str]) -> str:
    """A /proc and /sys under `root`; → root as a string."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(root)


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"
ONE_V1 = {f"{V1}/job/cpu.cfs_quota_us": "100000\n", f"{V1}/job/cpu.cfs_period_us": "100000\n"}


def test_without_a_cgroup_the_affinity_mask_counts(tmp_path):
    assert runtime.available_cpus(str(tmp_path)) == CPUS


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "100000 100000\n"},
        {"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "100000 100000\n", f"{V2}/cpu.max": "max 100000\n"},
        {"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "max 100000\n", f"{V2}/a/cpu.max": "50000 50000\n"},
        {"proc/self/cgroup": "0::/of/the/host\n", f"{V2}/cpu.max": "110000 100000\n"},
        {"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "1000 100000\n"},
        {"proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n", **ONE_V1},
    ],
    ids=["root", "own", "parent", "container", "tiny", "v1"],
)
def test_a_quota_of_one_cpu_is_one(tmp_path, files):
    assert runtime.available_cpus(system(tmp_path, files)) == 1


@pytest.mark.parametrize("content", ["max 100000", "", "nonsense", "-1 100000", "100000", "99999999999 100000"])
def test_no_quota_or_none_that_can_be_read(tmp_path, content):
    root = system(tmp_path, {"proc/self/cgroup": "0::/\nnonsense\n", f"{V2}/cpu.max": content})
    assert runtime.available_cpus(root) == CPUS


def test_an_unlimited_v1_quota(tmp_path):
    files = {f"{V1}/job/cpu.cfs_quota_us": "-1\n", f"{V1}/job/cpu.cfs_period_us": "100000\n"}
    assert runtime.available_cpus(system(tmp_path, {"proc/self/cgroup": "4:cpu,cpuacct:/job\n", **files})) == CPUS


@pytest.mark.skipif(CPUS < 2, reason="this machine gives one CPU, which no mask can reduce")
def test_the_affinity_mask_counts(tmp_path):
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert runtime.available_cpus(str(tmp_path)) == 1
    finally:
        os.sched_setaffinity(0, mask)
