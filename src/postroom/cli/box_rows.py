"""Numbers of boxes, and their sums over many stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class BoxRow(NamedTuple):
    """A box of a store, or of many stores together, and its numbers by name."""

    kind: str
    name: str
    numbers: Mapping[str, int]


def by_box(stores: Iterable[Iterable[BoxRow]]) -> list[BoxRow]:
    """Returns the sums over many stores: a row for each box, in the order in which they first occur."""
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for rows in stores:
        for row in rows:
            numbers = sums.setdefault((row.kind, row.name), {})
            for name, number in row.numbers.items():
                numbers[name] = numbers.get(name, 0) + number
    return [BoxRow(kind, name, numbers) for (kind, name), numbers in sums.items()]
