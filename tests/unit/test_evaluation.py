"""Windows of a text, and the arithmetic of distributions, against naive ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from precast.errors import PrecastError
from precast.evaluation.distributions import kl_divergence, log_probabilities, perplexity_of
from precast.evaluation.windows import cut, tokens_before_text, windows_of
from precast.runtime.text.tokenizer import Tokenizer
from tests.tiny import tiny_chat_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    tiny_chat_model(folder)
    return Tokenizer.from_folder(folder)


def naive(logits: list[float]) -> list[float]:
    """Natural logarithms of softmax(logits)."""
    above = [value - max(logits) for value in logits]
    total = math.log(math.fsum(map(math.exp, above)))
    return [value - total for value in above]


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0, 1e4])
def test_probabilities_and_divergences_are_the_naive_ones(scale: float) -> None:
    rows = (np.random.default_rng(7).normal(size=(2, 500)) * scale).astype(np.float32)
    log_p, log_q = (log_probabilities(row) for row in rows)
    expected_p, expected_q = (naive(row.tolist()) for row in rows)
    assert log_p == pytest.approx(expected_p, rel=1e-12, abs=1e-12)
    expected = math.fsum(math.exp(p) * (p - q) for p, q in zip(expected_p, expected_q, strict=True))
    assert kl_divergence(log_p, log_q) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_divergences_far_below_what_float32_resolves_are_kept() -> None:
    row = np.linspace(0, 30, 1000, dtype=np.float32)
    other = row.copy()
    other[-1] += np.float32(1e-4)
    # To second order, with one logit moved by d: KL = p · (1 − p) · d² / 2.
    p, moved = math.exp(log_probabilities(row)[-1]), float(other[-1]) - float(row[-1])
    found = kl_divergence(log_probabilities(row), log_probabilities(other))
    assert found == pytest.approx(p * (1 - p) * moved**2 / 2, rel=1e-3)
    assert found < 1e-9


def test_equal_rows_diverge_by_nothing() -> None:
    row = np.random.default_rng(1).normal(size=300).astype(np.float32)
    assert kl_divergence(log_probabilities(row), log_probabilities(row.copy())) == 0


def test_perplexity_of_hopeless_models_is_infinite() -> None:
    assert perplexity_of(math.log(320)) == pytest.approx(320)
    assert perplexity_of(1e30) == math.inf


def test_windows_follow_each_other_and_begin_with_the_start() -> None:
    found = cut(range(100, 110), [1], 5, 9)
    assert found.windows == [[1, 100, 101, 102, 103], [1, 104, 105, 106, 107], [1, 108, 109]]
    assert (found.predicted, found.longest) == (4 + 4 + 2, 5)
    assert found.text_ids == list(range(100, 110))
    assert cut(range(100, 110), [1], 5, 2).windows == found.windows[:2]


def test_a_rest_in_which_nothing_is_predicted_is_left_out() -> None:
    assert cut(range(5), [], 2, 9).windows == [[0, 1], [2, 3]]
    assert cut(range(5), [7], 3, 9).windows == [[7, 0, 1], [7, 2, 3], [7, 4]]


@pytest.mark.parametrize(("ids", "start", "window"), [([], [], 8), ([5], [], 8), ([5, 6], [1, 2], 2), ([], [1], 8)])
def test_texts_and_windows_that_are_too_short_are_refused(ids: list[int], start: list[int], window: int) -> None:
    with pytest.raises(PrecastError, match=r"too (few|short)"):
        cut(ids, start, window, 3)


def test_how_much_of_a_file_is_read_changes_no_token(tokenizer: Tokenizer, tmp_path: Path) -> None:
    # Runs of one letter and of the longest tokens, and line ends that must stay as they are.
    text = "the quick brown fox jumps over the lazy dog\r\n" * 400 + "x" * 5000 + "é\n" * 900
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    ids = tokenizer.encode(text, add_special_tokens=False)
    for window, most in ((2, 3), (16, 7), (64, 20), (100, 200)):
        assert windows_of(path, tokenizer, window, most).text_ids == ids[: window * most]


def test_a_window_begins_as_the_tokenizer_begins_a_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from tokenizers import processors

    path = tmp_path / "text"
    path.write_text("the dog sleeps")
    assert tokens_before_text(tokenizer) == []
    rust = type(tokenizer.rust).from_str(tokenizer.rust.to_str())
    rust.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    with_bos = Tokenizer(rust, {})
    assert tokens_before_text(with_bos) == [1]
    plain = tokenizer.encode("the dog sleeps", add_special_tokens=False)
    assert windows_of(path, with_bos, 100, 1).windows == [[1, *plain]]
