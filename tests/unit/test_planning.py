"""Workloads, KV memory and predictions of `precast plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precast._native import runtime as native
from precast.errors import EngineError, PrecastError, RequestError
from precast.planning.kv_memory import KvMemory, kv_memory, limits_of
from precast.planning.prediction import Plan, Targets
from precast.planning.workload import Workload, WorkloadRequest, read_workload
from precast.runtime.calibration import StepCosts

COSTS = StepCosts("some CPU", 2, [(1, 0.01), (64, 0.1)], [(1, 0.001)], 1e-4, 0.0, 0.0, 0.0)


def limits(**changes: Any) -> native.ModelLimits:
    given = {"max_batch_size": 8, "max_num_tokens": 128, "max_seq_len": 1024} | changes
    return native.CountingBackend(**given).limits


def plan(workload: Workload, targets: Targets = Targets(), pages: int = 200, **changes: Any) -> Plan:  # noqa: B008
    return Plan(limits(**changes), COSTS, [pages], workload, targets)


# ---- workloads ------------------------------------------------------------------------------------------------------


def test_a_file_of_requests(tmp_path: Path) -> None:
    lines = [
        {"arrival": 2, "prompt_tokens": 30, "output_tokens": 4, "shared_prefix_tokens": 9, "prefix": 3},
        {"arrival": 0.5, "prompt_token_ids": [5, 6, 7], "output_tokens": 1, "max_tokens": 8, "cache_salt": "a"},
        {"prompt_tokens": 1, "output_tokens": 1, "priority": -2},
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_workload(str(path)) == [
        WorkloadRequest(0.0, 1, 1, priority=-2),
        WorkloadRequest(0.5, 3, 1, (5, 6, 7), max_tokens=8, cache_salt="a"),
        WorkloadRequest(2.0, 30, 4, shared_prefix_tokens=9, prefix=3),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "line 1: expected an object"),
        ("{", "line 1: "),
        ('{"prompt_tokens": 1}', "output_tokens is None; it must be a number from 1"),
        ('{"prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens is 0"),
        ('{"prompt_tokens": true, "output_tokens": 1}', "prompt_tokens is True"),
        ('{"prompt_tokens": 1e9, "output_tokens": 1}', "prompt_tokens is 1000000000.0"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "arrival": -1}', "arrival is -1; it must be seconds"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "arrival": NaN}', "arrival is nan"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "arrival_step": 1}', "arrival_step is not known"),
        ('{"prompt_token_ids": [], "output_tokens": 1}', "must be a list of token ids"),
        ('{"prompt_token_ids": [4294967296], "output_tokens": 1}', "must be a list of token ids"),
        ('{"prompt_token_ids": [1], "prompt_tokens": 1, "output_tokens": 1}', "give either"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "cache_salt": 7}', "cache_salt must be a text"),
        ("", "has 0 requests"),
        ("[" * 100000, "line 1: "),
    ],
)
def test_a_line_that_makes_no_sense_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(line)
    with pytest.raises(PrecastError, match=r"w\.jsonl") as error:
        read_workload(str(tmp_path / "w.jsonl"))
    assert message in str(error.value)


def test_a_distribution_is_drawn_from_its_seed() -> None:
    text = "requests=400,rate=2,prompt=100..200,output=lognormal(50,0.5,80),prefix=0.5x150,seed=7"
    workload = read_workload(text)
    assert workload == read_workload(text)
    assert workload != read_workload(text.replace("seed=7", "seed=8"))
    assert len(workload) == 400
    assert {100 <= r.prompt_tokens <= 200 and 1 <= r.output_tokens <= 80 for r in workload} == {True}
    assert 0.4 < np.mean([r.shared_prefix_tokens > 0 for r in workload]) < 0.6
    assert 1.6 < 400 / workload[-1].arrival < 2.4
    assert 45 < np.median([r.output_tokens for r in workload]) < 55
    assert {r.arrival for r in read_workload("requests=3")} == {0.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing.jsonl", "does not exist; give a JSONL file, or a distribution"),
        ("requests=0", "requests is 0"),
        ("requests=many", "requests is many"),
        ("rate=0", "rate is 0; it must be requests per second"),
        ("rate=fast", "rate is fast"),
        ("prompt=0", "prompt is 0"),
        ("prompt=9..3", "prompt is 9..3"),
        ("prompt=lognormal(3,4)", r"prompt is lognormal\(3,4\)"),
        ("output=-1", "output is -1"),
        ("prefix=2x30", "prefix is 2x30"),
        ("prefix=half", "prefix is half"),
        ("speed=3", "speed is no part of a workload"),
        ("requests=3,oops", "'oops' is not like name=value"),
    ],
)
def test_a_distribution_that_makes_no_sense_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(PrecastError, match=message):
        read_workload(text)


# ---- memory ---------------------------------------------------------------------------------------------------------


def memory_of(tmp_path: Path, model: native.ModelLimits, budget: int | None) -> KvMemory:
    pretrained = {"num_key_value_heads": 2, "head_size": 16}
    config = {"pretrained_config": pretrained, "build_config": {"kv_cache_dtype": "int8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return kv_memory(tmp_path, model, budget)


@pytest.mark.parametrize("windows", [[0], [0, 40], [40]])
def test_as_many_sequences_run_at_once_as_the_table_says(windows: list[int], tmp_path: Path) -> None:
    model = limits(max_batch_size=64, max_num_tokens=512, windows=windows)
    memory = memory_of(tmp_path, model, 8 * 200)
    for length, fit in memory.sequences:
        workload = [WorkloadRequest(0.0, length - 40, 40)] * (fit + 3)
        result = Plan(model, COSTS, memory.pool_pages, workload, Targets()).simulate({}, record_steps=True)
        # The last token of all is never run: a page less may do.
        assert fit <= max(step.running for step in result.steps) <= min(64, fit + 3)


def test_the_bytes_of_a_token_are_explained(tmp_path: Path) -> None:
    memory = memory_of(tmp_path, limits(), None)
    assert memory.bytes_per_token == 8 / 32
    assert memory.formula == "2 (K and V) × 1 layers × 2 KV heads × 16 of int8 and an f32 scale"
    assert memory.sequences[-1][0] == 1024
    with pytest.raises(EngineError, match="give it more memory"):
        memory_of(tmp_path, limits(), 7)
    with pytest.raises(EngineError, match="is not an engine; `precast build` makes one"):
        limits_of(tmp_path)


# ---- predictions ----------------------------------------------------------------------------------------------------


def test_a_prediction_counts_what_the_simulation_gives() -> None:
    workload = [WorkloadRequest(0.0, 64, 3), WorkloadRequest(10.0, 64, 1)]
    found = plan(workload).predict({"max_batch_size": 4})
    first = 0.1 + 0.001 + 0.0001
    gap = 0.01 + 0.001 + 0.0001
    assert found.makespan == pytest.approx(10 + first)
    assert found.ttft.mean == pytest.approx(first)
    assert found.itl.p50 == pytest.approx(gap)
    assert found.output_tokens_per_second == pytest.approx(4 / (10 + first))
    assert found.utilization == pytest.approx((2 * first + 2 * gap) / (10 + first))
    assert found.queue.p99 == pytest.approx(0)
    assert (found.requests, found.attainment, found.goodput) == (2, 1.0, found.requests_per_second)


def test_targets_are_met_by_each_request_or_not() -> None:
    workload = [WorkloadRequest(0.0, 64, 3)] * 4
    strict = plan(workload, Targets(ttft=0.15)).predict({"max_num_tokens": 64})
    assert strict.attainment == 0.25
    assert strict.goodput == pytest.approx(1 / strict.makespan)
    assert plan(workload, Targets(itl=0.001)).predict({}).attainment == 0


def test_the_search_gives_the_best_of_all_settings() -> None:
    workload = read_workload("requests=60,rate=3,prompt=20..200,output=10..60")
    searched = plan(workload, Targets(ttft=1.0, itl=0.06))
    every = searched.search()
    assert len(every) == len(list(searched.candidates())) > 12
    assert every[0].goodput >= 0.999 * max(p.goodput for p in every)
    assert every[0].goodput > every[-1].goodput
    assert searched.predict(every[0].options) == every[0]


def test_of_settings_that_do_equally_well_the_largest_are_the_best() -> None:
    rare = [WorkloadRequest(10.0 * i, 64, 10) for i in range(5)]
    searched = plan(rare, Targets(ttft=1.0))
    best = searched.search()[0].options
    assert best["max_batch_size"] == searched.limits.max_batch_size
    assert best["max_num_tokens"] == searched.limits.max_num_tokens


def test_capacity_is_the_rate_that_still_meets_the_targets() -> None:
    workload = read_workload("requests=100,rate=1,prompt=64,output=20")
    tried = plan(workload, Targets(ttft=0.5))
    rate = tried.capacity({})
    assert rate is not None
    factor = rate * workload[-1].arrival / 100
    assert tried.predict({}, 1 / factor).attainment >= 0.95
    assert tried.predict({}, 1 / (1.2 * factor)).attainment < 0.95
    assert plan(workload, Targets(ttft=0.01)).capacity({}) is None
    assert plan(read_workload("requests=5"), Targets(ttft=9.0)).capacity({}) is None


def test_a_request_that_is_too_long_is_named() -> None:
    workload = [WorkloadRequest(0.0, 10, 10), WorkloadRequest(0.0, 1000, 25)]
    with pytest.raises(RequestError, match=r"request 2 of the workload has 1025 tokens .* takes 1024 \(max_seq_len\)"):
        plan(workload).predict({})


def test_a_drawing_has_every_line(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    from precast.planning.plot import draw

    drawn = plan(read_workload("requests=30,rate=3,prompt=20..200,output=1..60"), Targets(ttft=1.0))
    draw(drawn, drawn.predict({}), tmp_path / "plan.svg")
    tree = ElementTree.parse(tmp_path / "plan.svg")
    lines = tree.findall(".//{*}polyline")
    assert len(lines) == 4
    assert all(len(line.get("points", "").split()) > 10 for line in lines)
    with pytest.raises(PrecastError, match="cannot be written"):
        draw(drawn, drawn.predict({}), tmp_path / "missing" / "plan.svg")
