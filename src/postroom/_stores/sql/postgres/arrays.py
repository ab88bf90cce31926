"""Arrays as text in PostgreSQL's own format: faster than a driver's conversion, which checks each item of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NULL = "NULL"


def array_text(values: Iterable[int | str]) -> str:
    """Returns an array of numbers and NULLs as text."""
    return "{" + ",".join(map(str, values)) + "}"


def text_array(values: Sequence[str]) -> str:
    """Returns an array of any texts as text."""
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') != 2 * (len(values) - 1):
        joined = '","'.join(value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return f'{{"{joined}"}}'
