"""The CPU target."""

NUMERICS_VERSION = 0
"""Raised whenever a kernel's bits change: part of every engine's numerics_id."""
