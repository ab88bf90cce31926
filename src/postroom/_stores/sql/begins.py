"""`begin`: a claim by key that also inserts, for the records of guards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple, Protocol

from postroom._kernel.known_keys import is_outside_dedup_window
from postroom._stores.sql import rows
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.rows import Row
from postroom._stores.sql.statements import Many, SqlProgram, Statement
from postroom.spi import Begin, BeginStatus, Begun, Box, Claim, Key, State, StoredMessage, decide_begin

IndexedBegin = tuple[int, Begin]
"""A begin, and its index in the list that the caller passed."""


class KnownRecord(NamedTuple):
    """A record that has the key of a begin."""

    message: StoredMessage
    fence: int
    hash_algorithm: str | None
    now: datetime
    """The time at which it was read."""

    @classmethod
    def of(cls, engine: Engine, row: Row) -> KnownRecord:
        """Returns a row of the statement `lock_records`."""
        *entry, hash_algorithm, now = row
        message = rows.message_of(engine, tuple(entry))
        return cls(message, entry[rows.FENCE] or 0, hash_algorithm, engine.moment(now))

    @property
    def claim(self) -> Claim:
        """Returns the claim of a claimed record."""
        assert self.message.claim is not None  # noqa: S101
        return self.message.claim

    def claimed(self, begin: Begin) -> KnownRecord:
        """Returns the record as it is after a claim."""
        claim = Claim(self.message.id, begin.owner, self.fence + 1, begin.lease_end(self.now))
        deliveries = self.message.deliveries + 1
        message = self.message._replace(state=State.CLAIMED, claim=claim, deliveries=deliveries)
        return self._replace(message=message, fence=claim.fence)


class Records(Protocol):
    """How an engine inserts and reads records, with as few statements as it can."""

    def insert(self, box: Box, begins: Sequence[Begin], *, autocommit: bool) -> SqlProgram[list[Claim | None]]:
        """Inserts records as claimed. Returns their claims, and None where the key is known. No key comes twice.

        `autocommit`: nothing that follows must be atomic with it.
        """

    def lock(self, box: Box, keys: Sequence[Key]) -> SqlProgram[list[KnownRecord]]:
        """Returns records with these keys, which cannot be claimed or settled before the transaction ends.

        A record that has changed at the same moment may be missing.
        """


class Begins:
    """The verb `begin`."""

    def __init__(self, engine: Engine, records: Records) -> None:
        self._engine = engine
        self._records = records

    def begin(self, box: Box, begins: Sequence[Begin]) -> SqlProgram[list[Begun]]:
        begun: dict[int, Begun] = {}
        left: list[IndexedBegin] = list(enumerate(begins))
        autocommit = len(begins) == 1
        while left:
            first = {begin.draft.key: (index, begin) for index, begin in reversed(left)}
            new = sorted(first.values(), key=itemgetter(0))  # ids are in the order of the begins
            claims = yield from self._records.insert(box, [begin for _, begin in new], autocommit=autocommit)
            for (index, _), claim in zip(new, claims, strict=True):
                if claim is not None:
                    begun[index] = Begun(BeginStatus.ACQUIRED, claim, deliveries=1)
            known = [item for item in left if item[0] not in begun]
            # What is not decided here was purged or settled at the same moment, or its deduplication window has passed.
            begun |= yield from self._begin_known(box, known)
            left = [item for item in known if item[0] not in begun]
            autocommit = False
        return [begun[index] for index in range(len(begins))]

    def _begin_known(self, box: Box, begins: Sequence[IndexedBegin]) -> SqlProgram[dict[int, Begun]]:
        """Begins executions whose keys are known, one after the other. Returns the results of those that it decides."""
        if not begins:
            return {}
        found = yield from self._records.lock(box, sorted({begin.draft.key for _, begin in begins}))
        known = {record.message.key: record for record in found}
        for old in found:
            if is_outside_dedup_window(old.message.first_seen, box.retention.dedup_window, old.now):
                yield Statement("retire_key", {"id": old.message.id})
                del known[old.message.key]
        begun: dict[int, Begun] = {}
        claimed: list[Claim] = []
        for index, begin in begins:
            record = known.get(begin.draft.key)
            if record is None:
                continue
            status, is_new_claim = decide_begin(begin, record.message, record.hash_algorithm, record.now)
            if is_new_claim:
                known[begin.draft.key] = record = record.claimed(begin)
                claimed.append(record.claim)
            begun[index] = Begun.of(status, record.message)
        yield from self._claim(claimed)
        return begun

    def _claim(self, claims: list[Claim]) -> SqlProgram[None]:
        if claims:
            token, time = self._engine.token, self._engine.time
            claims.sort(key=lambda claim: claim.id)
            values = [(claim.id, token(claim.owner), time(claim.until)) for claim in claims]
            yield Many("claim_records", ("id", "owner", "until"), values)
            yield Many("see_records", ("id",), [(claim.id,) for claim in claims])
