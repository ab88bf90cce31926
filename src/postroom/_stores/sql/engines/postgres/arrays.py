"""Arrays as PostgreSQL writes them: a driver looks at each item of a list for longer than this takes."""

from __future__ import annotations

from collections.abc import Iterable

NULL, YES, NO = "NULL", "t", "f"


def array_text(values: Iterable[int | str]) -> str:
    """Of numbers, or of the constants above."""
    return "{" + ",".join(map(str, values)) + "}"
