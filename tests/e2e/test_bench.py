"""`precast bench` on a tiny engine. What it measures depends on the machine; that it fits together does not."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

from tests.e2e.command_line import precast


def test_latencies_of_every_case_are_told(engine: Path, tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    given = ("bench", "latency", engine, "--prompt-tokens", "32,100", "--batch-size", "1,3", "--context", "40,70")
    found = json.loads(precast(*given, "--rounds", 2, "--num-threads", 1, "--plot", plot, "--json").done())
    assert found["num_threads"] == 1
    assert [(p["prompt_tokens"], len(p["seconds"])) for p in found["prefill"]] == [(32, 2), (100, 2)]
    decode = found["decode"]
    assert [(d["batch_size"], d["context"]) for d in decode] == [(1, 40), (3, 40), (1, 70), (3, 70)]
    for d in decode:
        # Of 24 steps, the first stands behind a step with prompts; those of a round that began one by one are fewer.
        assert 2 * 20 <= len(d["seconds"]) <= 2 * 23
        assert d["itl"] == median(d["seconds"]) > 0
        assert d["tokens_per_second"] == pytest.approx(d["batch_size"] / d["itl"])
    for p in found["prefill"]:
        assert p["tokens_per_second"] == pytest.approx(p["prompt_tokens"] / median(p["seconds"]))
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert "decode: sequences" in precast(*given, "--rounds", 1).done()


def test_a_workload_is_run_and_stands_beside_its_prediction(engine: Path) -> None:
    workload = "requests=6,prompt=40..60,output=5..9,prefix=1x33"
    found = json.loads(precast("bench", "throughput", engine, "--workload", workload, "--json").done())
    assert found["requests"] == 6
    assert 6 * 5 <= found["output_tokens"] <= 6 * 9
    assert found["cached_tokens"] >= 5 * 32
    assert found["output_tokens_per_second"] == pytest.approx(found["output_tokens"] / found["makespan"])
    assert found["ttft"]["p50"] > 0
    assert found["predicted_output_tokens_per_second"] > 0
    shown = precast(
        "bench", "throughput", engine, "--workload", workload, "--scheduler-policy", "max_utilization"
    ).done()
    assert "of what the step costs predict" in shown


def test_every_op_of_a_step_is_told(engine: Path) -> None:
    found = json.loads(precast("bench", "profile", engine, "--batch-size", 2, "--rows", 3, "--json").done())
    ops = {op["name"]: op for op in found["ops"]}
    assert ops["layers.*.mlp.act"]["calls"] == ops["layers.*.attention"]["calls"] == 2
    assert ops["logits"]["calls"] == 1
    assert min(op["seconds"] for op in ops.values()) > 0
    assert found["seconds"] == pytest.approx(sum(op["seconds"] for op in ops.values()))
    assert {op["kernel"] for op in ops.values() if op["bound"] is not None} == {"linear", "paged_attention"}
    shown = precast("bench", "profile", engine, "--context", 0).done()
    assert "1 x 1 tokens behind 0" in shown
    assert "layers.*.attention.qkv" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("profile", "--batch-size", "5"), 1, "was built for 4 sequences, and this asks for 5"),
        (("profile", "--context", "9000"), 1, "tokens in a sequence, and this asks for 9001"),
        (("latency", "--prompt-tokens", "9000"), 1, "a prompt of 9000 tokens cannot be measured with this engine"),
        (("latency", "--batch-size", "5"), 1, "a batch of 5 cannot be measured with this engine; it takes 1 … 4"),
        (("latency", "--batch-size", "1,x"), 2, "is not a list of numbers"),
        (("latency", "--plot", "x.png"), 2, "--plot writes SVG"),
        (
            ("throughput", "--workload", "requests=2,prompt=9000,output=9"),
            1,
            "request 1 of the workload has 9009 tokens",
        ),
        (("throughput", "--workload", "nothing.jsonl"), 1, "the workload nothing.jsonl does not exist"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    engine: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    assert says in precast("bench", arguments[0], engine, *arguments[1:]).failed(code)


def test_only_engines_are_measured(hf_folder: Path) -> None:
    assert "is not an engine" in precast("bench", "latency", hf_folder).failed(1)
