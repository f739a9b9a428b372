"""The CPU target."""

NUMERICS_VERSION = 2
"""Raised whenever a kernel's bits change: part of every engine's numerics_id."""
