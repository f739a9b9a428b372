"""Measures of quality against transformers and naive formulas, on whole logit rows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from precast import LLM, SamplingParams
from precast.evaluation import model as evaluation_model
from precast.evaluation.compare import compare
from precast.evaluation.divergence import divergences, prompts_of
from precast.evaluation.engine_model import EngineModel
from precast.evaluation.model import Model, open_model
from precast.evaluation.perplexity import perplexity
from precast.evaluation.transformers_model import TransformersModel
from precast.evaluation.windows import Windows, windows_of
from tests.steps import make_engine
from tests.tiny import logits_of, tiny_chat_model

WINDOW = 100


class Stand:
    """One tiny model in all forms, and a text."""

    def __init__(self, folder: Path) -> None:
        self.hf = folder / "hf"
        self.model: LlamaForCausalLM = tiny_chat_model(self.hf)
        self.exact = make_engine(self.hf, folder / "exact")
        # Steps of 33 rows: windows come in pieces that end within pages.
        self.int8 = make_engine(self.hf, folder / "int8", {"quant": "int8"}, max_num_tokens=33, max_batch_size=4)
        text = folder / "text"
        text.write_text(
            "\n".join(f"the quick brown fox jumps over {i**3} lazy dogs, and the dog sleeps." for i in range(20))
        )
        self.windows = windows_of(text, EngineModel(self.exact).tokenizer, WINDOW, 4)

    def rows(self) -> list[tuple[np.ndarray, list[int]]]:  # type: ignore[type-arg]
        """transformers' logits of each window but its last row, and the tokens that they predict."""
        return [(logits_of(self.model, window)[:-1], window[1:]) for window in self.windows.windows]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return Stand(tmp_path_factory.mktemp("evaluation"))


def reserved(model: Model, windows: Windows) -> Model:
    model.reserve(windows.longest + 32)
    return model


def test_perplexity_is_transformers(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    nats = [
        torch.nn.functional.cross_entropy(torch.from_numpy(logits).double(), torch.tensor(tokens), reduction="sum")
        for logits, tokens in stand.rows()
    ]
    expected = math.exp(float(sum(nats)) / stand.windows.predicted)
    whole = perplexity(reserved(open_model(stand.hf), stand.windows), stand.windows)
    assert whole.perplexity == pytest.approx(expected, rel=1e-6)
    assert (whole.windows, whole.tokens) == (4, 4 * (WINDOW - 1))
    assert perplexity(reserved(open_model(stand.exact), stand.windows), stand.windows).perplexity == pytest.approx(
        expected, rel=1e-4
    )
    monkeypatch.setattr(evaluation_model, "LOGIT_BYTES", 1)  # pieces of a page
    pieces = reserved(open_model(stand.hf), stand.windows)
    assert pieces.most_rows == 32
    assert perplexity(pieces, stand.windows).perplexity == pytest.approx(expected, rel=1e-6)


def test_a_model_is_at_no_distance_from_itself(stand: Stand) -> None:
    for path in (stand.hf, stand.int8):
        a, b = (reserved(open_model(path), stand.windows) for _ in range(2))
        found = compare(a, b, stand.windows)
        assert (found.kl_mean, found.kl_max, found.top1_agreement, found.worst) == (0, 0, 1, [])
        assert found.perplexity_a == found.perplexity_b
        parted = divergences(a, b, prompts_of(stand.windows, 3), 8)
        assert [(each.equal_tokens, each.token_a) for each in parted] == [(8, None)] * 3


def test_divergences_are_those_of_whole_rows(stand: Stand) -> None:
    a, b = (reserved(open_model(path), stand.windows) for path in (stand.hf, stand.int8))
    found = compare(a, b, stand.windows, worst=3)
    kls, same, nats_b = [], [], []
    for (logits_a, tokens), window in zip(stand.rows(), stand.windows.windows, strict=True):
        b.begin()
        logits_b = np.concatenate([b.feed(window[at : at + 20]) for at in range(0, WINDOW, 20)])[:-1]
        log_a, log_b = (torch.from_numpy(rows).double().log_softmax(-1) for rows in (logits_a, logits_b))
        kls += torch.nn.functional.kl_div(log_b, log_a, reduction="none", log_target=True).sum(-1).tolist()
        same += (log_a.argmax(-1) == log_b.argmax(-1)).tolist()
        nats_b += (-log_b[range(len(tokens)), tokens]).tolist()
    assert found.kl_mean == pytest.approx(np.mean(kls), rel=1e-3)
    assert found.kl_median == pytest.approx(np.median(kls), rel=1e-2)
    assert found.kl_p99 == pytest.approx(np.percentile(kls, 99), rel=1e-2)
    assert found.kl_max > found.kl_mean > 1e-6
    assert found.top1_agreement == np.mean(same)
    assert found.nats_per_token_b == pytest.approx(np.mean(nats_b), rel=1e-9)
    places = [each.window * (WINDOW - 1) + each.position - 1 for each in found.worst]
    assert places == np.argsort(kls)[::-1][:3].tolist()
    worst = found.worst[0]
    assert worst.token.id == stand.windows.windows[worst.window][worst.position]
    assert worst.top_a.probability_a >= worst.top_b.probability_a
    assert worst.top_b.probability_b >= worst.top_a.probability_b


def test_greedy_answers_part_where_serving_parts_them(stand: Stand) -> None:
    a, b = (reserved(EngineModel(path), stand.windows) for path in (stand.exact, stand.int8))
    prompts = prompts_of(stand.windows, 6, seed=3)
    assert len({tuple(prompt) for prompt in prompts}) > 1
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    answers = []
    for engine in (stand.exact, stand.int8):
        with LLM(engine, generation_config=False) as llm:
            answers.append([output.token_ids for output in llm.generate(prompts, params)])
    found = divergences(a, b, prompts, 40)
    for each, of_a, of_b in zip(found, *answers, strict=True):
        equal = next((i for i in range(40) if of_a[i] != of_b[i]), 40)
        assert each.equal_tokens == equal
        if each.token_a is not None and each.token_b is not None:
            assert (each.token_a.id, each.token_b.id) == (of_a[equal], of_b[equal])
            assert each.token_a.probability_a >= each.token_b.probability_a
            assert each.token_b.probability_b >= each.token_a.probability_b
    assert any(each.token_a is not None for each in found)  # else the test would say little


def test_bfloat16_is_computed_in_bfloat16(stand: Stand) -> None:
    exact, rounded = (
        perplexity(reserved(TransformersModel(stand.hf, d), stand.windows), stand.windows)
        for d in ("float32", "bfloat16")
    )
    assert 0 < abs(rounded.perplexity / exact.perplexity - 1) < 0.1


def test_checkpoints_are_measured_as_engines(stand: Stand) -> None:
    model = open_model(stand.int8.parent / "ckpt")
    assert model.runs_on == "engine, W8A8_DYNAMIC, KV bfloat16"
    direct = perplexity(reserved(EngineModel(stand.int8), stand.windows), stand.windows)
    assert perplexity(reserved(model, stand.windows), stand.windows).nats_per_token == direct.nats_per_token
