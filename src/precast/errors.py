"""The errors that users meet. Each message is one sentence: what is wrong, where, and what to do.

The command line prints the message and exits with 1; nobody sees a traceback for a mistake of their own.
"""


class PrecastError(Exception):
    """Base of all errors that precast raises on purpose."""


class SourceError(PrecastError):
    """A model source (Hugging Face folder, GGUF, tokenizer, template) that cannot be used."""


class CheckpointError(PrecastError):
    """A checkpoint folder that is broken, foreign, or of another version."""


class BuildError(PrecastError):
    """An engine that cannot be built from this checkpoint with these settings."""


class EngineError(PrecastError):
    """An engine that will not load here: damaged, of another version, or built for another machine."""


class RequestError(PrecastError):
    """A request that is refused at enqueue, or that failed on its own; other requests are unaffected."""

    prompt_index: int | None = None
    """Which prompt of a list is refused, from 0 on."""
    reason: str | None = None
    """Then: the message without that number."""


class QueueFullError(RequestError):
    """A request that is refused for now, because too many wait (max_queued_requests, max_queued_tokens)."""
