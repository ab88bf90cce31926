"""`claim` and `renew`: leases on messages.

A claim makes one pass, and another one for as long as a pass finds rows that keep it from being complete: messages to
make dead, suspects that it leaves, continuations whose joins it must check.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

from postroom._kernel.policy import suspect_from
from postroom._stores.sql.endings import DeadLetter, Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.looks import Looks
from postroom._stores.sql.proofs import batches, proof
from postroom._stores.sql.statements import Parameters, SqlProgram, Statement, current_time
from postroom.spi import Box, Claim, ClaimRequest, StoredMessage


class Taken(NamedTuple):
    """What one pass of a claim has taken."""

    messages: list[StoredMessage]
    dead_letters: list[DeadLetter]
    """Undeliverable messages. The claim makes them dead and goes on."""
    is_suspect: bool
    """Whether the one message is a suspect: the claim ends with it."""
    skipped_suspects: bool = False
    """Whether suspects were read and left. They took the place of others, so the claim goes on without suspects."""
    waits: Sequence[int] = ()
    """Continuations that wait for joins. The claim looks at the joins and goes on."""

    @property
    def is_interrupted(self) -> bool:
        """Whether the claim must go on, although this pass found fewer messages than it could take."""
        return bool(self.dead_letters or self.skipped_suspects or self.waits)

    def rest_of(self, request: ClaimRequest, unseen: Sequence[int] = ()) -> ClaimRequest:
        """Returns the request for what is still missing; its limit is 0 if the claim is complete.

        `unseen`: ids that the rest of the claim must not see.
        """
        left = 0 if self.is_suspect else request.limit - len(self.messages)
        suspects = request.suspects and not self.messages
        return request._replace(limit=left, suspects=suspects, in_hand=(*request.in_hand, *unseen))


class ClaimPass(Protocol):
    """How messages of one kind of box are claimed."""

    def take(self, box: Box, request: ClaimRequest) -> SqlProgram[Taken]:
        """Claims messages, as far as none of those it reads is undeliverable."""


class Claims:
    """The verb `claim`."""

    def __init__(self, *, unordered: ClaimPass, fifo: ClaimPass, endings: Endings, looks: Looks, locks: Locks) -> None:
        self._unordered = unordered
        self._locks = locks
        self._fifo = fifo
        self._endings = endings
        self._looks = looks

    def claim(self, box: Box, request: ClaimRequest) -> SqlProgram[list[StoredMessage]]:
        claim_pass = self._fifo if box.order.fifo else self._unordered
        messages: list[StoredMessage] = []
        while request.limit:
            taken = yield from claim_pass.take(box, request)
            messages += taken.messages
            if not taken.is_interrupted:
                break
            request = yield from self.settle_interruption(box, request, taken)
        return messages

    def settle_interruption(self, box: Box, request: ClaimRequest, taken: Taken) -> SqlProgram[ClaimRequest]:
        """Does what a pass found to do besides claiming. Returns the request for the rest of the claim."""
        blocked = yield from self._locks.blocked_ends(box, [letter.id for letter in taken.dead_letters])
        letters = [letter for letter in taken.dead_letters if letter.id not in blocked]
        yield from self._endings.make_dead(box, letters)
        unseen = yield from self._looks.look(box, taken.waits, request)
        return taken.rest_of(request, [*unseen, *blocked])


class Renewals:
    """The verb `renew`."""

    def __init__(self, engine: Engine, *, waiting: str = "renew") -> None:
        """`waiting`: the statement that waits for row locks. An engine with one writer has no row locks to wait for."""
        self._engine = engine
        self._waiting = waiting

    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> SqlProgram[list[bool | None]]:
        """Returns True for each lease that was renewed, False if its claim is no longer valid, and None if the claim is
        valid and another transaction has locked the row."""
        return (yield from self._renew("renew", box, claims, lease))

    def renew_locked(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> SqlProgram[list[bool | None]]:
        """Like `renew`, and waits for locked rows."""
        return (yield from self._renew(self._waiting, box, claims, lease))

    def _renew(
        self, statement: str, box: Box, claims: Sequence[Claim], lease: timedelta
    ) -> SqlProgram[list[bool | None]]:
        now = yield from current_time()
        until = now + self._engine.duration(lease)
        kept: list[bool | None] = [False] * len(claims)
        for batch in batches(list(enumerate(claims))):
            found = yield Statement(statement, {**proof(self._engine, box, batch), "until": until})
            for id_, renewed in found:
                kept[batch[id_][0]] = True if renewed else None
        return kept


def delivery_limits(box: Box) -> Parameters:
    """Returns the parameters by which a statement finds undeliverable messages: see `cause_of_death` in the kernel."""
    return {"max_deliveries": box.delivery.max_deliveries, "max_lost_leases": box.delivery.max_lost_leases}


def suspect_limits(box: Box, request: ClaimRequest) -> Parameters:
    """Returns the parameters by which a statement finds suspects too: see `is_suspect` in the kernel."""
    suspects = {"suspects": int(request.suspects), "suspect_from": suspect_from(box.delivery)}
    return suspects | delivery_limits(box)
