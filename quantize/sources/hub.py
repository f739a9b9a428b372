"""Models of a hub (huggingface.co, or what HF_ENDPOINT names), through huggingface_hub and its cache.

Only what convert reads is fetched: safetensors, JSON, tokenizers and templates; never pickles, never code. The small
files come first, so that a model that cannot be converted is refused before its weights are fetched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from precast.errors import SourceError
from precast.quantize.families import family_of
from precast.quantize.sources.hf_folder import index_shards, read_hf_config
from precast.quantize.sources.recognise import INDEX, SINGLE, why_not

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.gguf)\Z", re.ASCII)

SMALL_FILES = (
    "config.json",
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)


def fetch(model: str, revision: str | None = None) -> Path:
    """The folder in huggingface_hub's cache with what convert reads of a model, as it is in `revision` (a branch, tag
    or commit; None: the main one). What is there already is not fetched again.

    Raises SourceError when huggingface_hub is not installed, the model cannot be had, or it is none that convert takes.
    """
    hub = _library(model)
    with _sentences(model, revision), _bars_in_terminals():
        folder = Path(hub.snapshot_download(model, revision=revision, allow_patterns=list(SMALL_FILES)))
        weights = sorted(index_shards(folder)) if (folder / INDEX).is_file() else [SINGLE]
        if (folder / "config.json").is_file() and all((folder / name).is_file() for name in weights):
            return folder
        if reason := why_not(model, hub.HfApi().list_repo_files(model, revision=folder.name)):
            raise SourceError(reason)
        config = read_hf_config(folder, model)
        family_of(config, model).read(config, "float32", model)
        hub.snapshot_download(model, revision=folder.name, allow_patterns=weights)
    return folder


def _library(model: str) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError:
        raise SourceError(
            f"there is no {model} here, and huggingface_hub, which fetches models from a hub, is not installed: run "
            f"pip install 'precast[hub]', or give a model folder"
        ) from None
    module: ModuleType = huggingface_hub
    return module


@contextmanager
def _bars_in_terminals() -> Iterator[None]:
    """huggingface_hub's own progress, but only where it is seen."""
    utils = import_module("huggingface_hub.utils")
    if utils.are_progress_bars_disabled() or (sys.stderr is not None and sys.stderr.isatty()):
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


@contextmanager
def _sentences(model: str, revision: str | None) -> Iterator[None]:
    """Whatever huggingface_hub raises, as a SourceError that says what to do."""
    from huggingface_hub import constants, errors

    endpoint, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    try:
        yield
    except SourceError:
        raise
    except errors.GatedRepoError:
        raise SourceError(
            f"{model} is gated: accept its terms at {endpoint}/{model}, and log in with `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise SourceError(f"{model} has no revision {revision} at {endpoint}") from None
    except errors.RepositoryNotFoundError:
        raise SourceError(
            f"there is no {model} here, and none at {endpoint} that you may read; correct the name, or log in with "
            "`hf auth login`"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{endpoint} cannot be reached"
        raise SourceError(
            f"there is no {model} here, {why}, and not all of it is in the cache {cache}; connect, or fetch it "
            f"elsewhere, with hf download {model} --local-dir {model.rpartition('/')[2]}, and give that folder"
        ) from None
    except Exception as error:  # of several libraries below huggingface_hub
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(f"{model} could not be fetched from {endpoint}: {told}") from None
