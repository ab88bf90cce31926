"""`settle`: outcomes of claimed messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from postroom._kernel.availability import give_back
from postroom._stores.sql.endings import DeadLetter, Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.notifications import Notifications
from postroom._stores.sql.proofs import IndexedClaim, batches, proof
from postroom._stores.sql.statements import Many, SqlProgram, Statement, current_time
from postroom._stores.sql.steps import Steps
from postroom.errors import AmbiguousMessageId
from postroom.spi import Box, Claim, NamedTarget, Result, Settlement

_UNKNOWN = datetime.max.replace(tzinfo=UTC)


class ValidClaim(NamedTuple):
    """A row of the statement `find_valid_claims`."""

    id: int
    attempt: int
    group: str | None
    is_stale: int
    """Whether the content was replaced while the message was claimed."""


class Completed(NamedTuple):
    """What `Successes.complete` has done."""

    indexes: list[int]
    """The indexes of valid claims: their messages are done."""
    steps: list[int]
    """The ids of messages that are watched steps of joins."""


Results = Mapping[int, Result]
"""Results of guarded handlers, by the indexes of their settlements."""


class Successes(Protocol):
    """How an engine completes messages, with as few statements as it can."""

    def complete(self, box: Box, done: Sequence[IndexedClaim], results: Results) -> SqlProgram[Completed]:
        """Makes messages done whose claims are valid, and stores their results. Wakes no continuations."""


class Settlements:
    """The verb `settle`."""

    def __init__(
        self,
        engine: Engine,
        *,
        lines: Lines,
        endings: Endings,
        successes: Successes,
        notifications: Notifications,
        steps: Steps,
    ) -> None:
        self._engine = engine
        self._lines = lines
        self._endings = endings
        self._steps = steps
        self._successes = successes
        self._notifications = notifications

    def settle(self, box: Box, settlements: Sequence[Settlement]) -> SqlProgram[list[bool]]:
        settled = yield from self.apply(box, settlements)
        yield from self.notify(box, settled)
        return settled

    def notify(self, box: Box, settled: Sequence[bool]) -> SqlProgram[None]:
        """Notifies workers that the next message of a FIFO group may be claimable."""
        if box.order.fifo and any(settled):
            yield from self._notifications.send_soon(box)

    def apply(self, box: Box, settlements: Sequence[Settlement]) -> SqlProgram[list[bool]]:
        """Settles without a notification, for a worker that claims next. Returns True for each valid claim."""
        settled = [False] * len(settlements)
        done: list[IndexedClaim] = []
        others: list[IndexedClaim] = []
        for index, settlement in enumerate(settlements):
            target = settlement.target
            claim = (yield from self._find_claim(box, target)) if isinstance(target, NamedTarget) else target
            if claim is not None:
                (done if settlement.verdict == "done" else others).append((index, claim))
        if box.delivery.on_stale_ack == "requeue":
            done, stale = yield from self._split_stale(box, done)
            others = sorted(others + stale)
        # Other outcomes come before successes: each ends the batch of its group, and a success behind it in the same
        # line is then no longer valid.
        steps: list[int] = []
        if others:
            indexes, steps = yield from self._give_back(box, others, settlements)
            for index in indexes:
                settled[index] = True
        results = {index: result for index, _ in done if (result := settlements[index].result) is not None}
        completed = yield from self._successes.complete(box, done, results)
        for index in completed.indexes:
            settled[index] = True
        # One statement locks all continuations in id order: two settlements cannot wait for each other.
        yield from self._steps.ended(box, [*steps, *completed.steps])
        return settled

    def _find_claim(self, box: Box, target: NamedTarget) -> SqlProgram[Claim | None]:
        """Returns the claim that the owner has on a message with this id; None if there is none."""
        found = yield Statement(
            "find_claim_by_name",
            {"box": box.key, "message_id": target.message_id, "owner": self._engine.token(target.owner)},
        )
        if target.source is None and len(found) > 1:
            raise AmbiguousMessageId
        for source, id_, fence in found:
            if id_ is not None and target.source in {None, source}:
                return Claim(id_, target.owner, fence, _UNKNOWN)
        return None

    def _split_stale(
        self, box: Box, done: Sequence[IndexedClaim]
    ) -> SqlProgram[tuple[list[IndexedClaim], list[IndexedClaim]]]:
        """Splits successes into those of current content and those of content that was replaced meanwhile."""
        stale: set[int] = set()
        for batch in batches(done):
            found = yield Statement("find_valid_claims", proof(self._engine, box, batch))
            stale.update(batch[row[0]][0] for row in found if ValidClaim(*row).is_stale)
        return [item for item in done if item[0] not in stale], [item for item in done if item[0] in stale]

    def _give_back(
        self, box: Box, claims: Sequence[IndexedClaim], settlements: Sequence[Settlement]
    ) -> SqlProgram[tuple[list[int], list[int]]]:
        """Applies retry, release and dead, and releases stale successes. Wakes no continuations.

        Returns the indexes of valid claims, and the ids of steps for `Steps.ended`.
        """
        now = yield from current_time()
        # All claims are checked before anything changes: ending a batch makes claims behind it invalid.
        valid: dict[int, tuple[int, ValidClaim]] = {}
        for batch in batches(claims):
            for row in (yield Statement("find_valid_claims", proof(self._engine, box, batch))):
                valid.setdefault(row[0], (batch[row[0]][0], ValidClaim(*row)))
        groups = {id_: claim.group for id_, (_, claim) in valid.items() if claim.group is not None}
        # The batch of a group ends behind the first of its messages that is given back.
        firsts = {group: id_ for id_, group in sorted(groups.items(), reverse=True)}
        yield from self._lines.end_batches(box, firsts.items())
        waiting: list[tuple[object, ...]] = []
        dead_letters: list[DeadLetter] = []
        for id_, (index, claim) in sorted(valid.items()):
            settlement = settlements[index]
            if settlement.verdict == "dead":
                letter = DeadLetter(id_, claim.group, settlement.error or "", counts=settlement.counts)
                dead_letters.append(letter)
            else:
                back = give_back(box.delivery, settlement, claim.attempt, in_line=claim.group is not None)
                at = None if back.delay is None else now + self._engine.duration(back.delay)
                waiting.append((id_, back.attempt, at, settlement.error))
        yield Many("give_back", ("id", "attempt", "at", "error"), waiting)
        steps = yield from self._endings.bury(box, dead_letters)
        yield from self._lines.promote(box, firsts)
        return [index for index, _ in valid.values()], steps
