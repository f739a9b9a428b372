"""`sampling`: from one row of logits to one token. The meaning, computed plainly; tokens are equal bit for bit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]

GREEDY_TEMPERATURE = 1e-5
WEIGHT_OF_BEST = 2**40
_MOST = float(np.finfo(np.float32).max)


def process(
    logits: npt.NDArray[Any],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    min_tokens: int = 0,
    stop_token_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
) -> Row:
    """Logits f32 [vocab], as the model gave them after `prompt` and `output`, as they are chosen from: f32 [vocab].

    In this order, each step computed in f64, cut to what f32 holds, and rounded: `logit_bias` is added; tokens that
    occur in prompt or output are divided by `repetition_penalty` when above zero, else multiplied, and of those in the
    output `frequency_penalty` times their count and `presence_penalty` are subtracted; before `min_tokens` the tokens
    `stop_token_ids` are banned (−inf), and so is the last token of each of `bad_words` (token sequences) whose other
    tokens are the latest of prompt and output.
    """
    row = np.array(logits, np.float32)

    def put(token: int, value: float) -> None:
        row[token] = np.float32(min(max(value, -_MOST), _MOST))

    for token, bias in (logit_bias or {}).items():
        put(token, float(row[token]) + bias)
    in_output = Counter(output)
    for token in set(prompt) | set(output):
        value = float(row[token])
        value = value / repetition_penalty if value > 0 else value * repetition_penalty
        if token in in_output:
            value = value - frequency_penalty * in_output[token] - presence_penalty
        put(token, value)
    if len(output) < min_tokens:
        row[list(stop_token_ids)] = -np.inf
    held = [*prompt, *output]
    for *begin, last in bad_words:
        if len(begin) <= len(held) and held[len(held) - len(begin) :] == begin:
            row[last] = -np.inf
    return row


def weights(row: Row, temperature: float) -> list[int]:
    """floor(2^40 · e^((logit − maximum) / temperature)) of logits f32 [vocab], with the exponential of `_exp`."""
    with np.errstate(over="ignore"):  # an infinite depth weighs nothing
        depth = (row - row.max()) * np.float32(1.0 / temperature)
    return [int(w) for w in np.atleast_1d(_exp(depth) * np.float32(WEIGHT_OF_BEST))]


def choose(
    row: Row, random_bits: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> int:
    """The token that is chosen from logits f32 [vocab], which `process` gave, with 64 random bits.

    Tokens are ranked by (logit falling, id rising). Below a temperature of 1e-5 it is the first. Otherwise the first
    `top_k` (0: all) stay; of those the shortest beginning that has `top_p` of their weight; of those the tokens of at
    least `min_p` of the weight of the first. In rising id it is the first whose weights, added up, are above
    floor(random_bits · sum / 2^64).
    """
    ranked = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))
    if temperature < GREEDY_TEMPERATURE:
        return ranked[0]
    weight = weights(row, temperature)
    if top_k > 0:
        ranked = ranked[:top_k]
    if top_p < 1:
        total = sum(weight[token] for token in ranked)
        wanted = min(max(math.ceil(top_p * float(total)), 1), total)
        kept, mass = [], 0
        for token in ranked:
            if mass >= wanted:
                break
            kept.append(token)
            mass += weight[token]
        ranked = kept
    ranked = [token for token in ranked if weight[token] >= math.ceil(min_p * WEIGHT_OF_BEST)]
    target = random_bits * sum(weight[token] for token in ranked) >> 64
    for token in sorted(ranked):
        target -= weight[token]
        if target < 0:
            return token
    raise AssertionError("a target lies below the sum")


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Natural log-probabilities of logits [vocab], in f64; the core is within 1e-5 of them."""
    x = np.asarray(logits, np.float64)
    x = x - x.max()
    return np.asarray(x - math.log(np.exp(x).sum()))


def _exp(x: Row) -> Row:
    """e^x for x ≤ 0 within 1e-6, every operation rounded to f32; x below −87 counts as −87.

    2^n · e^r with n = x / ln 2 rounded to the nearest integer, and the Taylor polynomial of degree 6 for e^r.
    """
    f = np.float32
    x = np.maximum(x, f(-87))
    shift = f(2**23 + 2**22)
    n = _fma(x, f(1.44269504), shift) - shift
    r = _fma(-n, f(1.42860677e-6), _fma(-n, f(0.693145752), x))
    p = np.full_like(x, f(1) / f(720))
    for c in (f(1) / f(120), f(1) / f(24), f(1) / f(6), f(0.5), f(1), f(1)):
        p = _fma(p, r, c)
    return np.asarray(np.ldexp(p, n.astype(np.int32)), np.float32)


def _fma(a: Row, b: np.float32 | Row, c: np.float32 | Row) -> Row:
    """a · b + c of f32, rounded once.

    The product is exact in f64. The sum is not always, and rounding its f64 to f32 would round twice: where something
    was lost, the f64 is made odd (S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved
    algorithms using rounding to odd", 2008), so that it lies on no border of f32.
    """
    product, addend = np.float64(a) * np.float64(b), np.float64(c)
    total = product + addend
    rest = total - product
    lost = (product - (total - rest)) + (addend - rest)  # exact (D. Knuth's two-sum)
    bits = np.asarray(total).view(np.int64)
    even = (bits & 1) == 0
    toward_zero = (lost < 0) == (total > 0)  # the exact sum is nearer to zero than `total`
    odd = np.where(toward_zero, bits - 1, bits + 1)
    fixed = np.where((lost != 0) & even, odd, bits).view(np.float64)
    return np.asarray(fixed, np.float32)
