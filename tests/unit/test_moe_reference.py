"""What routing means, ties and strangers' rows included."""

from __future__ import annotations

import numpy as np
import pytest

from precast.plugins.moe.reference import moe, route
from precast.plugins.qk_norm.reference import qk_norm


def test_of_equal_experts_the_lower_id_is_taken() -> None:
    chosen, weights = route(np.array([[1, 3, 3, 3, 0], [2, 2, 2, 2, 2]], np.float32), 2, True)
    assert chosen.tolist() == [[1, 2], [0, 1]]
    assert np.allclose(weights, 0.5)


def test_weights_are_probabilities_over_all_experts() -> None:
    logits = np.log(np.array([[1, 2, 5, 2]], np.float32))
    chosen, weights = route(logits, 2, False)
    assert chosen.tolist() == [[1, 2]]
    assert np.allclose(weights, [[0.2, 0.5]])
    assert np.allclose(route(logits, 2, True)[1], [[2 / 7, 5 / 7]])


def test_an_expert_sees_its_own_rows_alone() -> None:
    seen: dict[int, list[float]] = {0: [], 1: [], 2: []}

    def expert(number: int) -> object:
        def run(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> object:
            seen[number] += rows[:, 0].tolist()
            return rows * (number + 1)

        return run

    x = np.array([[1, 0], [2, 0], [4, 0]], np.float32)
    logits = np.array([[9, 0, -9], [-9, 9, 0], [0, 9, -9]], np.float32)
    y = moe(x, logits, [expert(i) for i in range(3)], 1, True)  # type: ignore[misc]
    assert seen == {0: [1.0], 1: [2.0, 4.0], 2: []}
    assert y[:, 0].tolist() == [1.0, 4.0, 8.0]


def test_a_shared_expert_is_added_times_its_gate() -> None:
    x = np.ones((1, 2), np.float32)
    y = moe(x, np.zeros((1, 1), np.float32), [lambda r: r], 1, True, lambda r: 4 * r, np.zeros((1, 1), np.float32))
    assert np.allclose(y, 1 + 0.5 * 4)


def test_an_unknown_norm_of_q_and_k_is_refused() -> None:
    with pytest.raises(ValueError, match="rms_head, rms_full, layer_head"):
        qk_norm("l2", np.ones((1, 2, 4), np.float32), np.ones(4, np.float32), 1e-6)
