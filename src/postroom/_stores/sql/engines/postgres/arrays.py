"""Arrays as PostgreSQL writes them: a driver looks at each item of a list for longer than this takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NULL = "NULL"


def array_text(values: Iterable[int | str]) -> str:
    """Of numbers and NULL."""
    return "{" + ",".join(map(str, values)) + "}"


def text_array(values: Sequence[str]) -> str:
    """Of any texts."""
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') != 2 * (len(values) - 1):
        joined = '","'.join(value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return f'{{"{joined}"}}'
