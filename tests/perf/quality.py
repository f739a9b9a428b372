"""Perplexity of an engine, or of a Hugging Face folder under transformers, on the same text.

usage: python tests/perf/quality.py ENGINE_OR_FOLDER TEXT [--tokens 10240] [--window 512] [--dtype float32]

The text is cut into windows; every token but a window's first is predicted. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from precast.pipeline import kind_of
from precast.runtime.text.tokenizer import Tokenizer
from tests.steps import Steps


def negative_log_likelihood(logits: Any, tokens: list[int]) -> float:
    """Sum over positions 1 … of −log p(token | before), from logits f32 [len(tokens), vocab]."""
    total = 0.0
    for row, token in zip(logits[:-1], tokens[1:], strict=True):
        above = row - row.max()
        total += math.log(np.exp(above).sum(dtype=np.float64)) - float(above[token])
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=10240)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    text = options.text.read_text(errors="replace")
    ids = Tokenizer.from_folder(options.model).encode(text[: 8 * options.tokens], add_special_tokens=False)
    windows = [ids[i : i + options.window] for i in range(0, options.tokens, options.window)]
    windows = [w for w in windows if len(w) > 1]
    total = sum(map(_engine(options.model) if kind_of(options.model) == "engine" else _folder(options), windows))
    count = sum(len(w) - 1 for w in windows)
    print(json.dumps({"model": str(options.model), "tokens": count, "perplexity": math.exp(total / count)}))


def _engine(folder: Path) -> Any:
    steps = Steps(folder, num_threads=0)
    most = min(steps.engine.limits.max_num_tokens, steps.engine.limits.max_batch_size)  # rows with logits in a step

    def score(window: list[int]) -> float:
        return negative_log_likelihood(steps.logits(window, [most] * (len(window) // most)), window)

    return score


def _folder(options: argparse.Namespace) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).eval()

    def score(window: list[int]) -> float:
        with torch.no_grad():
            return negative_log_likelihood(model(torch.tensor([window])).logits[0].float().numpy(), window)

    return score


if __name__ == "__main__":
    main()
