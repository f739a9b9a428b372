"""`precast plan` on a tiny engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from tests.e2e.command_line import precast

WORKLOAD = "requests=20,rate=50,prompt=10..90,output=5..20"


def test_memory_alone_needs_no_workload(engine: Path) -> None:
    found = json.loads(precast("plan", engine, "--kv-cache-memory", "16M", "--json").done())
    cache = found["kv_cache"]
    assert list(found) == ["kv_cache"]
    assert cache["pool_bytes"] <= 16 << 20
    lengths, fit = zip(*cache["sequences"], strict=True)
    assert lengths[-1] == 8192
    assert list(fit) == sorted(fit, reverse=True)
    shown = precast("plan", engine, "--kv-cache-memory", "16M").done()
    assert f"{cache['bytes_per_token']:,.0f} bytes a token = 2 (K and V) × " in shown
    assert re.search(rf"8,192 +{fit[-1]:,}\n", shown)


def test_a_workload_is_predicted_and_the_best_settings_come_first(engine: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plan.svg"
    given = ("plan", engine, "--workload", WORKLOAD, "--ttft", 10000, "--itl", 1000)
    found = json.loads(precast(*given, "--plot", plot, "--json").done())
    best, *others = found["predictions"]
    assert best["requests"] == 20
    assert best["goodput"] > 0
    assert best["goodput"] >= 0.99 * max(p["goodput"] for p in others)
    assert found["step_costs"]["measured_now"] is False
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    shown = precast(*given).done()
    assert "best settings first" in shown
    assert "requests per second, of which 95% meet the targets" in shown
    never = precast("plan", engine, "--workload", WORKLOAD, "--ttft", 0.0001, "--max-batch-size", 2).done()
    assert "capacity: none; at no rate of arrivals" in never


def test_given_settings_are_predicted_and_costs_measured_again(engine: Path, tmp_path: Path) -> None:
    workload = tmp_path / "requests.jsonl"
    workload.write_text('{"prompt_tokens": 40, "output_tokens": 7}\n' * 5)
    given = ("plan", engine, "--workload", workload, "--max-batch-size", 2)
    found = json.loads(precast(*given, "--recalibrate", "--json").done())
    assert [p["options"] for p in found["predictions"]] == [
        {"max_batch_size": 2, "max_num_tokens": 512, "scheduler_policy": "guaranteed_no_evict"}
    ]
    assert found["step_costs"]["measured_now"] is True
    assert found["step_costs"]["stored_error"] >= 0
    assert "the engine's stored step costs are off by" in precast(*given, "--recalibrate").done()


def test_misuse_is_one_sentence(engine: Path, checkpoint: Path, tmp_path: Path) -> None:
    def plan(*arguments: object, code: int = 1) -> str:
        return precast("plan", *arguments).failed(code)

    assert "is not an engine; `precast build` makes one" in plan(checkpoint)
    assert "is not an engine; `precast build` makes one" in plan(tmp_path / "missing")
    assert "are for a --workload; give one" in plan(engine, "--ttft", 100, code=2)
    assert "--plot writes SVG" in plan(engine, "--workload", WORKLOAD, "--plot", "plan.png", code=2)
    assert "does not exist; give a JSONL file, or a distribution" in plan(engine, "--workload", "nothing.jsonl")
    more = plan(engine, "--workload", WORKLOAD, "--max-batch-size", 1000)
    assert "max_batch_size is 1000, and this engine was built for" in more
    assert "the engine takes 8192 (max_seq_len)" in plan(engine, "--workload", "requests=1,prompt=9000")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_bytes((engine / "config.json").read_bytes())
    (damaged / "rank0.engine").write_bytes(b"x" * 100)
    assert "not an engine" in plan(damaged)
