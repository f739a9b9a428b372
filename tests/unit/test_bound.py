"""The work of a step, counted again in the plainest way."""

from __future__ import annotations

import pytest

from precast._native import kernels
from precast._native import runtime as native
from precast.benchmark.bound import StepWork
from precast.builder import BuildOptions, build
from precast.builder.machine_limits import Limits, Work, seen_positions
from precast.quantize import ConvertOptions, convert
from tests.tiny import VOCAB, tiny_llama


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> StepWork:
    """Two layers of 96 with 4 heads, 2 KV heads of 40 and an MLP of 160, in int8 with K/V in int8."""
    folder = tmp_path_factory.mktemp("bound")
    tiny_llama(folder / "hf")
    convert(folder / "hf", folder / "ckpt", ConvertOptions("int8"))
    build(folder / "ckpt", folder / "engine", BuildOptions(kv_cache_dtype="int8"))
    return StepWork(folder / "engine")


def test_a_step_multiplies_what_its_linears_do_and_its_attention_sees(work: StepWork) -> None:
    layer = 96 * (4 + 2 + 2) * 40 + 4 * 40 * 96 + 96 * 2 * 160 + 160 * 96
    found = work.of([(3, 10), (1, 20)])
    assert found.ops["i8"] == 2 * (4 * 2 * layer + 2 * 96 * VOCAB)
    pairs = 11 + 12 + 13 + 21
    dtype = "bf16" if kernels.isa_level() == "avx512" else "f32"
    assert found.ops[dtype] == 2 * 4 * pairs * 4 * 40
    assert set(found.ops) == {"i8", dtype}


def test_a_step_reads_every_weight_once_and_the_keys_and_values_that_it_sees(work: StepWork) -> None:
    one, two = work.of([(1, 0)]), work.of([(1, 0), (5, 31)])
    assert two.read_bytes - one.read_bytes == 2 * 36 * 2 * 2 * (40 + 4)
    layer = 96 * (4 + 2 + 2) * 40 + 4 * 40 * 96 + 96 * 2 * 160 + 160 * 96
    assert one.read_bytes == pytest.approx(2 * layer + 96 * VOCAB, rel=0.06)  # and scales, and padding


@pytest.mark.parametrize("window", [0, 1, 5, 100])
@pytest.mark.parametrize(("rows", "before"), [(1, 0), (1, 7), (6, 0), (6, 3), (4, 200)])
def test_what_rows_see_is_counted(rows: int, before: int, window: int) -> None:
    sees = [[p for p in range(i + 1) if not window or p > i - window] for i in range(before, before + rows)]
    assert seen_positions(rows, before, window) == (len(set().union(*map(set, sees))), sum(map(len, sees)))


def test_the_bound_is_the_longer_of_reading_and_computing() -> None:
    limits = Limits(read_bytes=100.0, i8_ops=10.0, bf16_ops=5.0, f32_ops=2.0)
    assert Work(1000.0, {"i8": 10.0, "bf16": 5.0, "f32": 2.0}).seconds(limits) == 10.0
    assert Work(100.0, {"i8": 10.0, "bf16": 5.0, "f32": 2.0}).seconds(limits) == 3.0


def test_limits_of_this_machine_are_found_and_kept_when_lower_ones_follow() -> None:
    found = native.machine_limits(1)
    assert min(found.read_bytes, found.i8_ops, found.bf16_ops, found.f32_ops) > 1e6
    high = Limits(1e30, 1e30, 1e30, 1e30)
    assert high.or_higher(1) == high
