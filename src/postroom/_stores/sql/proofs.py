"""Claims as proof: a settlement or a renewal changes only rows that have the id, the owner and the fence of a claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from postroom._stores.sql.engine import Engine
from postroom._stores.sql.statements import Parameters
from postroom.spi import Box, Claim

IndexedClaim = tuple[int, Claim]
"""A claim, and its index in the list that the caller passed."""


def by_owner(claims: Sequence[IndexedClaim]) -> Iterator[tuple[UUID, dict[int, IndexedClaim]]]:
    """Yields batches of claims of one owner, by message id. A second claim of the same message goes to a later batch:
    at most one of them is valid."""
    while claims:
        owner, batch, rest = claims[0][1].owner, dict[int, IndexedClaim](), list[IndexedClaim]()
        for item in claims:
            claim = item[1]
            if (claim.owner is owner or claim.owner == owner) and claim.id not in batch:
                batch[claim.id] = item
            else:
                rest.append(item)
        yield owner, batch
        claims = rest


def proof(engine: Engine, box: Box, owner: UUID, batch: Mapping[int, IndexedClaim]) -> Parameters:
    """Returns the parameters by which a statement finds the rows whose claims are still valid."""
    fences = {id_: batch[id_][1].fence for id_ in sorted(batch)}
    return {"box": box.key, "owner": engine.token(owner), **engine.claims(fences)}
