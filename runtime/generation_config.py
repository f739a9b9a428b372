"""What a model's generation_config.json says about sampling."""

from __future__ import annotations

import warnings
from typing import Any

from precast.errors import EngineError, RequestError
from precast.runtime.sampling import SamplingParams

_DEFAULTS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "repetition_penalty": "repetition_penalty",
    "stop_strings": "stop",
}
"""Settings of a generation_config.json that count always, and what they are called here."""

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "sequence_bias": ({}, []),
    "min_length": (0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "forced_decoder_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "begin_suppress_tokens": ([],),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "token_healing": (False,),
}
"""Settings that are ignored with a warning, because they change what transformers answers; and values that do not."""

_UNSUPPORTED_SAMPLING: dict[str, tuple[Any, ...]] = {
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
}
"""The same, of those that count with do_sample only."""


def defaults_of(generation_config: dict[str, Any], where: str) -> SamplingParams:
    """A model's defaults, from its generation_config.json.

    As in transformers, temperature and filters count only with `do_sample`. Settings that would change the output and
    are not supported warn. Raises EngineError for a value that is out of range; `where` names the file.
    """
    config = {key: value for key, value in generation_config.items() if value is not None}
    sampled = config.get("do_sample", False)
    if not isinstance(sampled, bool):
        raise EngineError(f"{where}: do_sample must be true or false, not {sampled!r}; correct it")
    names = _DEFAULTS | ({name: name for name in ("temperature", "top_k", "top_p", "min_p")} if sampled else {})
    given = {ours: config[key] for key, ours in names.items() if key in config}
    if sampled:
        given.setdefault("temperature", 1.0)
    for key, neutral in (_UNSUPPORTED | (_UNSUPPORTED_SAMPLING if sampled else {})).items():
        if key in config and config[key] not in neutral:
            warnings.warn(f"{where} asks for {key} {config[key]!r}, which is not supported and ignored", stacklevel=2)
    try:
        given |= _banned(config)
        return SamplingParams(**given)
    except RequestError as error:
        raise EngineError(f"{where}: {error}; correct it, or load with generation_config=False") from None


def _banned(config: dict[str, Any]) -> dict[str, Any]:
    """`bad_words` of a generation config's bad_words_ids and suppress_tokens.

    As in transformers, an end token alone is no bad word.
    """
    eos = config.get("eos_token_id")
    ends = [[token] for token in (eos if isinstance(eos, list) else [eos])]
    words, tokens = config.get("bad_words_ids", []), config.get("suppress_tokens", [])
    for name, value in (("bad_words_ids", words), ("suppress_tokens", tokens)):
        if not isinstance(value, list):
            raise RequestError(f"{name} is {value!r}; it must be a list")
    banned = [word for word in words if word not in ends] + [[token] for token in tokens]
    return {"bad_words": banned} if banned else {}
