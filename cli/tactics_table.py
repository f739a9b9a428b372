"""The tactics of an engine as a table."""

from __future__ import annotations

from typing import Any

UNITS = {"read_bytes": "GB/s read", "i8_ops": "GOPS int8", "bf16_ops": "GOPS bf16", "f32_ops": "GOPS f32"}


def tactics_table(tactics: Any) -> list[str]:
    """Lines for people of `tactics` in an engine's config.json; none when it is something else, or nothing was timed.

    A cell is the time of one op in a step of so many rows, and the share of it that the machine needs at its limits.
    """
    try:
        limits = ", ".join(f"{tactics['limits'][name] / 1e9:.1f} {unit}" for name, unit in UNITS.items())
        head = f"{tactics['threads']} threads; the machine's limits: {limits}"
        columns = sorted({int(n) for row in tactics["shapes"].values() for n in row["seconds"]})
        table = [["shape", "ops", "choice", *(f"{n} row{'s' * (n > 1)}" for n in columns)]]
        for shape, row in tactics["shapes"].items():
            choice = ", ".join(f"{name} {value}" for name, value in row["choice"].items()) or "-"
            table.append([str(shape), str(row["ops"]), choice, *(_cell(row, str(n)) for n in columns)])
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            text.ljust(width) if i in (0, 2) else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
    return [head, *(line.rstrip() for line in lines)] if len(table) > 1 else []


def _cell(row: dict[str, Any], rows: str) -> str:
    if rows not in row["seconds"]:
        return ""
    return f"{row['seconds'][rows] * 1e6:,.0f} us {row['share_of_limit'][rows]:4.0%}"
