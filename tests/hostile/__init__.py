"""A zoo of hostile and broken models: name → Hostile, for sources, checkpoints and engines."""

from __future__ import annotations

from tests.hostile.built import CHECKPOINTS, ENGINES
from tests.hostile.changes import Hostile
from tests.hostile.ggufs import GGUFS
from tests.hostile.models import CONFIGS, HEADERS, INDEXES, SIDE_TEXTS
from tests.hostile.texts import OLD_TOKENIZERS, TEMPLATES, TOKENIZERS

__all__ = ["CHECKPOINTS", "ENGINES", "SOURCES", "Hostile"]

SOURCES = HEADERS | INDEXES | CONFIGS | SIDE_TEXTS | TOKENIZERS | OLD_TOKENIZERS | TEMPLATES | GGUFS
