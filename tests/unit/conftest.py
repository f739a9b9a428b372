"""Fixtures of the kernel tests."""

import pytest

from precast._native import kernels


@pytest.fixture(params=["avx2", "avx2_vnni", "avx512"])
def level(request: pytest.FixtureRequest) -> str:
    """Each ISA level that this CPU can run; the others are skipped by name."""
    name: str = request.param
    if not kernels.isa_supported(name):
        pytest.skip(f"this CPU cannot run the ISA level {name}")
    return name
