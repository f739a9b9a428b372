"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, and no limits of time: a machine may be busy with something else.
settings.register_profile("precast", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("precast")


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The build cache of the session, also of processes that tests start: nobody's own cache is touched, and no hub is
    asked."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRECAST_CACHE", str(folder))
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield folder
