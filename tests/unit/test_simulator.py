"""The simulator against a public article's figures, and what Python sees of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from precast._native import runtime as native
from precast.errors import EngineError, RequestError
from tests import article
from tests.article import Figures


@pytest.mark.parametrize(
    ("simulated", "expected"),
    [
        (article.static, (1042.75, 2027, 5359)),
        (article.continuous, (8.18, 24, 3475)),
        (article.prefix_cache, (5.2, 18, 3473)),
    ],
)
def test_the_articles_cost_model_gives_the_articles_figures(
    simulated: Callable[[], Figures], expected: tuple[float, float, float]
) -> None:
    found = simulated()
    assert round(found.ttft_mean, 2) == expected[0]
    assert (found.ttft_p95, found.makespan) == expected[1:]


def test_padding_and_peak_are_the_articles() -> None:
    assert round(article.padding(), 4) == 0.8076
    assert article.prefix_cache().peak_prompt_tokens == 51944


def limits(**changes: int) -> native.ModelLimits:
    return native.CountingBackend(
        **{"max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 128, "page_tokens": 8} | changes
    ).limits


def test_a_steps_time_is_that_of_its_parts() -> None:
    workload = native.Workload()
    workload.add(1.0, 10, 3)
    cost = native.StepCost(rows=[(1, 1.0), (10, 2.0)], logit_rows=[(1, 0.25)], sequence=0.5, decode_kv_byte=0.001)
    result = native.simulate(workload, limits(), cost, num_pages=10, record_steps=True)
    # A page of 8 tokens takes 8 bytes.
    assert result.token_times(0) == pytest.approx(np.cumsum([1 + 2.75, 1.75 + 0.011, 1.75 + 0.012]))
    assert [step.shape.rows for step in result.steps] == [10, 1, 1]
    assert [step.held_pages for step in result.steps] == [[2], [2], [2]]
    assert result.finished == pytest.approx([result.makespan])
    assert result.busy_seconds == pytest.approx(result.makespan - 1)


def test_prompts_of_given_ids_share_what_they_have_in_common() -> None:
    workload = native.Workload()
    for i in range(2):
        workload.add(float(9 * i), [*range(20), 100 + i], 2)
    result = native.simulate(workload, limits(), native.StepCost(rows=[(1, 1.0)]), num_pages=20)
    assert result.cached_tokens == [0, 20]


def test_what_cannot_run_is_refused_with_a_sentence() -> None:
    workload, cost = native.Workload(), native.StepCost(rows=[(1, 1.0)])
    workload.add(0.0, 100, 40)
    with pytest.raises(RequestError, match="has 140 tokens with its output, and max_seq_len is 128"):
        native.simulate(workload, limits(), cost, num_pages=100)
    with pytest.raises(EngineError, match="max_chunk_tokens is 7"):
        native.simulate(native.Workload(), limits(), cost, num_pages=100, max_chunk_tokens=7)
    with pytest.raises(EngineError, match="gather"):
        native.simulate(native.Workload(), limits(), cost, num_pages=100, gather=0)
    with pytest.raises(EngineError, match="do not rise"):
        native.StepCost(rows=[(2, 1.0), (1, 2.0)])
    with pytest.raises(EngineError, match="no time"):
        native.StepCost(sequence=float("nan"))
