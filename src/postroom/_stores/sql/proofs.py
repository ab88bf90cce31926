"""Claims as proof: a settlement or a renewal changes only rows that have the id, the owner and the fence of a claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from postroom._stores.sql.engine import Engine
from postroom._stores.sql.statements import Parameters
from postroom.spi import Box, Claim

IndexedClaim = tuple[int, Claim]
"""A claim, and its index in the list that the caller passed."""
Batch = dict[int, IndexedClaim]
"""Claims by message id."""


def batches(claims: Sequence[IndexedClaim]) -> Iterator[Batch]:
    """Yields claims by message id. A second claim of the same message goes to a later batch: at most one is valid.

    A batch is one statement, so that its rows are locked in id order.
    """
    while claims:
        batch, rest = Batch(), list[IndexedClaim]()
        for item in claims:
            if item[1].id in batch:
                rest.append(item)
            else:
                batch[item[1].id] = item
        yield batch
        claims = rest


def proof(engine: Engine, box: Box, batch: Mapping[int, IndexedClaim]) -> Parameters:
    """Returns the parameters by which a statement finds the rows whose claims are still valid."""
    return {"box": box.key, **engine.claims([batch[id_][1] for id_ in sorted(batch)])}
