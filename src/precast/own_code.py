"""The identity of the code that makes engines."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from precast import _native

MAKERS = ("quantize", "builder", "plugins", "runtime.text")
"""The packages that an engine's bytes depend on, besides the native module and the modules beside this one."""


def code_digest() -> str:
    """SHA-256 over the sources that convert and build consist of, and the native module.

    The version alone would not do: with a source tree that was updated between two releases, the build cache would go
    on serving what the code before had made. Reads about 1 MB in some 10 ms.
    """
    found = hashlib.sha256()
    for path in sorted(_sources()):
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _sources() -> list[Path]:
    native = _native.__file__
    assert native is not None
    paths = [Path(native), *Path(__file__).parent.glob("*.py")]
    for name in MAKERS:
        spec = find_spec(f"precast.{name}")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        for folder in spec.submodule_search_locations:
            paths += Path(folder).rglob("*.py")
    return paths
