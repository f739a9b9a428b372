"""What the descriptions say of each family, for people: `python -m precast.quantize.families.page` prints
docs/models.md."""

from __future__ import annotations

from typing import Any

from precast.quantize.families import FAMILIES
from precast.quantize.families.family import Family

# Fields that a family sets beside what all have → the words for them.
FEATURES = {
    "qk_norm": "q/k norms",
    "clip_qkv": "clipped q/k/v",
    "sliding_window": "sliding windows",
    "no_rope_layers": "layers without rope",
    "attention_scale": "attention scale",
    "attn_logit_softcapping": "attention softcap",
    "final_logit_softcapping": "logit softcap",
    "embedding_multiplier": "embedding multiplier",
    "residual_multiplier": "residual multiplier",
    "logits_multiplier": "logit multiplier",
    "embedding_norm": "embedding norm",
    "parallel_residual": "parallel residual",
    "lm_head_bias": "head bias",
    "moe": "experts",
}

PLACES = {"pre": "before", "post": "behind", "sandwich": "before and behind"}


def rows() -> list[dict[str, str]]:
    """One row for each family, in the order of its title."""
    return [_row(family) for family in sorted(FAMILIES.values(), key=lambda family: family.title.lower())]


def _row(family: Family) -> dict[str, str]:
    settings = family.settings
    fields = {name for key in settings for name in ([key] if isinstance(key, str) else key)}
    kind = {"rms_norm": "RMS", "layer_norm": "layer"}[str(settings.get("norm_type", "rms_norm"))]
    return {
        "family": family.title,
        "model_type": family.model_type,
        "models": family.models,
        "norms": f"{kind}, {PLACES[str(settings.get('norm_placement', 'pre'))]}",
        "positions": _positions(family),
        "MLP": "gated" if settings.get("gated_mlp", True) else "plain",
        "further": ", ".join(words for field, words in FEATURES.items() if _present(settings, fields, field)),
        "GGUF": "yes" if family.gguf else "",
    }


def _present(settings: Any, fields: set[str], name: str) -> bool:
    return name in fields and settings.get(name, True) is not None


def _positions(family: Family) -> str:
    kind = str(family.settings.get("position_embedding_type", "rope"))
    if kind != "rope":
        return {"learned_absolute": "learned", "alibi": "ALiBi"}[kind]
    partial = "rotary_dim" in family.settings or (family.rope is not None and family.rope.partial not in (None, 1))
    local = family.rope is not None and family.rope.local_base is not None
    return ("partial rope" if partial else "rope") + (", another in sliding layers" if local else "")


def page() -> str:
    """docs/models.md."""
    table = rows()
    head = list(table[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(f"`{v}`" if k == "model_type" else v for k, v in row.items()) + " |" for row in table]
    return f"""# Models

<!-- Generated: python -m precast.quantize.families.page > docs/models.md -->

{len(table)} families. `model_type` is what config.json says; models of another one are refused, and the refusal names
the nearest. Both layouts of config.json are read, that of transformers 4.x and that of 5.x, and a setting that is not
known is refused by its name. Rope may be scaled in the ways `linear`, `dynamic`, `llama3`, `yarn` and `longrope`;
`dynamic` and `longrope` are fixed for the engine's max_seq_len.

{chr(10).join(lines)}

Not here: InternLM 2, which transformers does not have (its models bring code of their own, which precast never runs);
OPT-350M; Falcon with ALiBi; the text part of a model of pictures or sound, unless it was saved as a model of its own.

`precast inspect --families` prints this list. A family is a description in `quantize/families/`; each is tested
against transformers on a tiny random model, with every feature taken away in turn (`tests/parity/test_families.py`).
Models whose norms are RMS norms before attention and MLP are rotated when they are quantized to int8.
"""


if __name__ == "__main__":
    print(page(), end="")
