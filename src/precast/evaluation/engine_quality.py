"""The section `quality` of an engine: what its checkpoint lost, as `convert --eval` measured it, and a short check that
this engine gives the probabilities that were measured then."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from precast.builder.engine_file import EngineWriter
from precast.errors import CheckpointError, EngineError
from precast.evaluation.engine_model import EngineModel
from precast.evaluation.model import Model
from precast.evaluation.perplexity import nats
from precast.json_file import read_object

SECTION, TAG = "quality", "quality.json"

CHECK_TOKENS = 64
"""Of the first window that was measured: a short prefill, longer than a KV page."""

MOST_DIFFERENCE = 1.0
"""Nats per token. On SmolLM2 and Gemma 3 270M in int8, K/V in bf16 gave 0.05 and 0.06, in 8 bits 0.06 to 0.09; with the
halves of one packed weight of SmolLM2 exchanged (a qkv of a middle layer, the head) it was 2.1 and 31."""


FIGURES = (
    "windows",
    "tokens",
    "kl_mean",
    "kl_median",
    "kl_p99",
    "kl_max",
    "top1_agreement",
    "perplexity_source",
    "perplexity",
)
"""Of a report's `quality`, that an engine keeps."""


def check_of(model: Model, window: list[int]) -> dict[str, Any]:
    """What `report.json` keeps for `add_quality`: the first tokens of a window, and the nats of all but the first."""
    tokens = window[:CHECK_TOKENS]
    return {"tokens": tokens, "nats": nats(model, tokens)}


def add_quality(engine: Path, checkpoint: Path) -> None:
    """Adds the section to a fresh engine folder, if its checkpoint was measured.

    Raises CheckpointError for a report that cannot be read, EngineError for an engine that gives other probabilities.
    """
    report = read_object(checkpoint / "report.json", CheckpointError, optional=True)
    if (quality := report.get("quality")) is None:
        return
    model = EngineModel(engine)
    kept, tokens, expected = _read(quality, model.vocab_size, str(checkpoint / "report.json"))
    tokens = tokens[: model.max_seq_len]
    model.reserve(len(tokens))
    found = nats(model, tokens)
    difference = math.fsum(abs(a - b) for a, b in zip(found, expected, strict=False)) / len(found)
    if not difference <= MOST_DIFFERENCE:
        raise EngineError(
            f"the engine of {checkpoint} gives other probabilities than were measured at its conversion "
            f"({difference:.2g} nats per token, {MOST_DIFFERENCE:g} are allowed): convert the model again, and if that "
            "does not help, report a defect of precast on this CPU"
        )
    checked = {"engine_checked_tokens": len(found), "engine_nats_difference": difference}
    data = json.dumps(kept | checked, separators=(",", ":")).encode()
    writer = EngineWriter.extend(engine / "rank0.engine", [(SECTION, TAG, len(data))])
    try:
        writer.add(SECTION, data)
        writer.close()
    except BaseException:
        writer.abort()
        raise


def _read(quality: Any, vocab_size: int, where: str) -> tuple[dict[str, Any], list[int], list[float]]:
    """(What an engine keeps of a report's `quality`, tokens to check and their nats.) Raises CheckpointError for
    anything that `convert` would not write."""
    check = quality.get("check") if isinstance(quality, dict) else None
    tokens, expected = (check.get(key) if isinstance(check, dict) else None for key in ("tokens", "nats"))
    if (
        not isinstance(tokens, list)
        or not isinstance(expected, list)
        or not 2 <= len(tokens) == len(expected) + 1 <= CHECK_TOKENS
        or not all(type(token) is int and 0 <= token < vocab_size for token in tokens)
        or not all(type(value) is float and math.isfinite(value) for value in expected)
    ):
        raise CheckpointError(f"{where} has a quality that convert did not write; convert the model again")
    kept = {key: value for key, value in quality.items() if key in FIGURES and _is_number(value)}
    if len(kept) != len(FIGURES):
        raise CheckpointError(f"{where} has a quality that convert did not write; convert the model again")
    return kept, tokens, expected


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1 << 63
