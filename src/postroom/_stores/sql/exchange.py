"""`exchange`: a worker settles and claims in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from postroom._stores.sql.claims import Claims
from postroom._stores.sql.settlements import Settlements
from postroom._stores.sql.statements import SqlProgram
from postroom.spi import Box, ClaimRequest, Settlement, StoredMessage

Exchanged = tuple[list[bool], list[StoredMessage]]
"""Whether each settlement was valid, and the claimed messages."""


class Exchange(Protocol):
    """The verb `exchange`."""

    def exchange(self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest) -> SqlProgram[Exchanged]: ...


class SettleThenClaim:
    """An exchange in several statements."""

    def __init__(self, settlements: Settlements, claims: Claims) -> None:
        self._settlements = settlements
        self._claims = claims

    def exchange(self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest) -> SqlProgram[Exchanged]:
        settled = yield from self._settlements.apply(box, settlements)
        claimed = yield from self._claims.claim(box, request)
        if request.topics is not None:
            # The next message of a group may have a topic that this worker does not claim.
            yield from self._settlements.notify(box, settled)
        return settled, claimed
