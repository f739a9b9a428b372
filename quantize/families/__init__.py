"""Families: how a Hugging Face config becomes a checkpoint config, and where the weights are. Data, not code paths."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from precast.errors import SourceError
from precast.quantize.families.alibi import BLOOM, MPT
from precast.quantize.families.family import Family
from precast.quantize.families.gemma import GEMMA, GEMMA2, GEMMA3
from precast.quantize.families.gpt import GPT2, GPT_NEOX, GPTJ, OPT
from precast.quantize.families.granite import GRANITE
from precast.quantize.families.llama import LLAMA, MISTRAL
from precast.quantize.families.moe import MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from precast.quantize.families.olmo import OLMO, OLMO2
from precast.quantize.families.parallel import COHERE, COHERE2, FALCON, PHI, STABLELM, STARCODER2
from precast.quantize.families.phi import PHI3
from precast.quantize.families.qwen import QWEN2, QWEN3
from precast.quantize.families.smollm3 import SMOLLM3

_LLAMA_LIKE = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, PHI3, SMOLLM3, GRANITE, OLMO, OLMO2)
_GPT_LIKE = (GPT2, GPT_NEOX, GPTJ, OPT, PHI, FALCON, STABLELM, STARCODER2, COHERE, COHERE2, BLOOM, MPT)
_EXPERTS = (MIXTRAL, QWEN2_MOE, QWEN3_MOE, OLMOE)

FAMILIES: dict[str, Family] = {family.model_type: family for family in (*_LLAMA_LIKE, *_GPT_LIKE, *_EXPERTS)}

NEAREST = 3
"""Supported families that a refusal names."""


def family_of(config: dict[str, Any], where: str) -> Family:
    """The family of a Hugging Face config. Raises SourceError, naming the nearest ones, when there is none."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise SourceError(f"{where}: model_type {model_type!r} is not supported; {nearest(model_type)}")
    family = FAMILIES[model_type]
    architectures = config.get("architectures") or []
    for name in architectures if isinstance(architectures, list) else [architectures]:
        if name != family.architecture:
            raise SourceError(f"{where}: architecture {name} is not supported; {family.architecture} is")
    return family


def nearest(model_type: Any) -> str:
    """The supported families whose names are most like this one, and where the others are listed."""
    names = get_close_matches(str(model_type), FAMILIES, NEAREST, cutoff=0.5)
    told = f"the nearest supported: {', '.join(names)}; " if names else ""
    return f"{told}`precast inspect --families` lists all {len(FAMILIES)}"
