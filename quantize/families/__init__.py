"""Families: how a Hugging Face config becomes a checkpoint config, and where the weights are. Data, not code paths."""

from __future__ import annotations

from typing import Any

from precast.errors import SourceError
from precast.quantize.families.family import Family
from precast.quantize.families.llama import LLAMA

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA,)}


def family_of(config: dict[str, Any], where: str) -> Family:
    """The family of a Hugging Face config. Raises SourceError, naming what is supported, when there is none."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise SourceError(
            f"{where}: model_type {model_type!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"
        )
    family = FAMILIES[model_type]
    for name in config.get("architectures") or []:
        if name != family.architecture:
            raise SourceError(f"{where}: architecture {name} is not supported; {family.architecture} is")
    return family
