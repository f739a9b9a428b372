"""A row's logits are the same bits whatever else is in the step, however its sequence was chunked, with any number of
threads. Sizes are chosen to be multiples of nothing: every padding and every tail is crossed."""

import numpy as np
import pytest
import torch

from precast.builder import BuildOptions, build
from precast.quantize import ConvertOptions, convert
from tests.steps import Sequence, Steps
from tests.tiny import random_tokens, tiny_llama

VOCAB = 323
KINDS = {
    "f32": (torch.float32, {}, "float32"),
    "bf16": (torch.bfloat16, {}, "bfloat16"),
    "int8": (torch.bfloat16, {"quant": "int8"}, "bfloat16"),
    "int8_kv": (torch.bfloat16, {"quant": "int8"}, "int8"),
    "fp8_kv": (torch.bfloat16, {}, "fp8"),
    "int8_per_token": (torch.float32, {"quant": "int8", "activation_group_size": 0, "rotate": False}, "float32"),
}


@pytest.fixture(scope="module", params=KINDS)
def engine(request, tmp_path_factory):
    dtype, options, kv = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    sizes = {"hidden_size": 102, "intermediate_size": 172, "head_dim": 40, "vocab_size": VOCAB}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    tied = {"tie_word_embeddings": request.param != "bf16"}
    tiny_llama(folder / "hf", dtype=dtype, attention_bias=True, **sizes, **heads, **tied)
    convert(folder / "hf", folder / "ckpt", ConvertOptions(**options))
    limits = BuildOptions(max_batch_size=16, max_num_tokens=1024, max_seq_len=2048, kv_cache_dtype=kv)
    build(folder / "ckpt", folder / "engine", limits)
    return folder / "engine"


@pytest.fixture(scope="module")
def tokens():
    return random_tokens(700, vocab=VOCAB)


@pytest.fixture(scope="module")
def whole(engine, tokens):
    """Logits of all positions, from one chunk on one thread."""
    logits = Steps(engine).logits(tokens)
    assert np.isfinite(logits).all()
    assert logits.std(axis=0).min() > 0
    return logits


@pytest.mark.parametrize(
    "chunks", [(1,), (31, 1, 33), (64,) * 10, (255, 1, 1, 1), (256, 256), (300, 5, 2, 1, 17, 3)], ids=str
)
def test_chunks_do_not_matter(engine, tokens, whole, chunks):
    assert Steps(engine).logits(tokens, chunks).tobytes() == whole.tobytes()


def test_token_by_token_does_not_matter(engine, tokens, whole):
    assert Steps(engine).logits(tokens[:300], (1,) * 299).tobytes() == whole[:300].tobytes()


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_do_not_matter(engine, tokens, whole, threads):
    steps = Steps(engine, threads)
    assert steps.logits(tokens).tobytes() == whole.tobytes()
    assert steps.logits(tokens, (500, 190, 4, 1, 1)).tobytes() == whole.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_company_does_not_matter(engine, tokens, whole, threads):
    steps = Steps(engine, threads)
    ours, others = Sequence(), [Sequence() for _ in range(9)]
    rng = np.random.default_rng(5)
    at = 0
    while at < 690:
        size = min(int(rng.choice([1, 1, 1, 7, 90, 260])), 690 - at)
        company = [(o, random_tokens(int(rng.integers(1, 40)), int(rng.integers(99)), VOCAB)) for o in others]
        place = int(rng.integers(len(company) + 1))
        work = [*company[:place], (ours, tokens[at : at + size]), *company[place:]]
        first = sum(len(new) for _, new in work[:place])
        logits = steps.step(work, range(first, first + size))
        assert logits.tobytes() == whole[at : at + size].tobytes()
        at += size


def test_which_rows_are_asked_for_does_not_matter(engine, tokens, whole):
    steps = Steps(engine, 2)
    for rows in ([], [0], [699], [3, 4, 500], list(range(0, 700, 13))):
        sequence = Sequence()
        assert steps.step([(sequence, tokens)], rows).tobytes() == whole[rows].tobytes()
        steps.release(sequence)


def test_a_copied_page_serves_as_well(engine, tokens, whole):
    steps = Steps(engine)
    first = Sequence()
    steps.step([(first, tokens[:50])], [])
    fork = Sequence(50, [first.pages[0], steps.free.pop()])
    # Copies come before what the step itself appends to the copied page.
    steps.step([(first, [7] * 30)], [], copies=[(0, first.pages[1], fork.pages[1], 18)])
    assert steps.step([(fork, tokens[50:80])]).tobytes() == whole[50:80].tobytes()


def test_steps_that_break_a_limit_are_refused(engine):
    steps = Steps(engine, num_pages=8)
    forward = steps.engine.forward
    i32 = lambda *rows: np.array(rows, np.int32)  # noqa: E731
    table = i32([0, 1])
    wrong = {
        "token outside": (i32(VOCAB), i32([1, 0]), table, i32(0)),
        "token below": (i32(-1), i32([1, 0]), table, i32(0)),
        "no tokens": (np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros((0, 1), np.int32), i32()),
        "too many tokens": (np.zeros(1025, np.int32), i32([1025, 0]), i32([0] * 33), i32(0)),
        "too many sequences": (np.zeros(17, np.int32), i32(*[[1, 0]] * 17), i32(*[[0]] * 17), i32(0)),
        "rows missing": (i32(1, 2), i32([1, 0]), table, i32(0)),
        "rows beyond": (i32(1), i32([2, 0]), table, i32(0)),
        "no rows": (i32(1), i32([0, 0], [1, 0]), i32([0], [1]), i32(0)),
        "position below": (i32(1), i32([1, -1]), table, i32(0)),
        "position beyond": (i32(1), i32([1, 2048]), i32([0] * 80), i32(0)),
        "table too short": (i32(1), i32([1, 64]), table, i32(0)),
        "page outside": (i32(1), i32([1, 0]), i32([8]), i32(0)),
        "page below": (i32(1), i32([1, 40]), i32([0, -1]), i32(0)),
        "logit row outside": (i32(1), i32([1, 0]), table, i32(1)),
        "logit rows not rising": (i32(1, 2), i32([2, 0]), table, i32(1, 1)),
    }
    for name, arguments in wrong.items():
        try:
            forward(*arguments)
        except ValueError:
            continue
        pytest.fail(f"accepted: {name}")
    for copy in ((0, 0, -1, 5), (0, 8, 0, 5), (1, 0, 1, 5), (-1, 0, 1, 5), (0, 0, 1, 33), (0, 0, 1, -1)):
        with pytest.raises(ValueError, match="copy"):
            forward(i32(1), i32([1, 0]), table, i32(0), i32(copy))
    assert steps.step([(Sequence(), [1, 2, 3])]).shape == (3, VOCAB)
