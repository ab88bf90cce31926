"""`put`: messages arrive in a box."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from postroom._stores.sql.attaching import Attaching
from postroom._stores.sql.collapsing import Collapsing
from postroom._stores.sql.known_keys import KnownKeys
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.notifications import Notifications
from postroom._stores.sql.statements import SqlProgram
from postroom.spi import Box, Draft, Receipt, ReceiptStatus, State

_WAKES = frozenset({ReceiptStatus.NEW, ReceiptStatus.REVIVED, ReceiptStatus.CONFLICT})
"""What a known key may become by a put, if its message was not waiting before: a key that was only seen, one whose
deduplication window has passed, or a dead letter that is revived."""


class Batch(NamedTuple):
    """Drafts of one put, all with different keys."""

    drafts: Sequence[Draft]
    is_whole_put: bool
    """Whether the put is complete with this batch."""
    in_caller_tx: bool
    """Whether the transaction is the caller's. It may stay open for long, so it locks nothing that a worker needs."""


class Inserted(NamedTuple):
    """What an insert of a batch has done."""

    ids: Sequence[int]
    """An id for each draft."""
    known: frozenset[int]
    """The ids that were not used, because the keys of their drafts are known."""


class Inserts(Protocol):
    """How an engine inserts a batch, with as few statements as it can."""

    def insert(self, box: Box, batch: Batch) -> SqlProgram[Inserted]:
        """Inserts messages with new keys, and their queue rows."""


class Arrivals:
    """The verb `put`."""

    def __init__(
        self,
        inserts: Inserts,
        *,
        known_keys: KnownKeys,
        collapsing: Collapsing,
        locks: Locks,
        attaching: Attaching,
        notifications: Notifications,
    ) -> None:
        self._notifications = notifications
        self._inserts = inserts
        self._known_keys = known_keys
        self._collapsing = collapsing
        self._locks = locks
        self._attaching = attaching

    def put(self, box: Box, drafts: Sequence[Draft], *, in_caller_tx: bool = False) -> SqlProgram[list[Receipt]]:
        # Before anything is stored: the caller's transaction may go on after an error.
        joins = yield from self._attaching.check(box, drafts)
        receipts: list[Receipt] = []
        for part in _parts_with_distinct_keys(drafts):
            is_whole_put = len(part) == len(drafts) and not joins
            receipts += yield from self._put_batch(box, Batch(part, is_whole_put, in_caller_tx))
        yield from self._attaching.attach_put(box, joins, drafts, receipts)
        return receipts

    def _put_batch(self, box: Box, batch: Batch) -> SqlProgram[list[Receipt]]:
        drafts = batch.drafts
        collapse_keys = sorted({draft.collapse_key for draft in drafts if draft.collapse_key is not None})
        if collapse_keys:
            yield from self._locks.collapse_keys(box, collapse_keys)
        ids, known = yield from self._inserts.insert(box, batch)
        if not collapse_keys and not known:
            return list(map(Receipt.of_new, ids, drafts))
        keys = [draft.key for id_, draft in zip(ids, drafts, strict=True) if id_ in known]
        yield from self._locks.keys(box, keys, progress=not batch.in_caller_tx)
        receipts: list[Receipt] = []
        wakes = False
        for id_, draft in zip(ids, drafts, strict=True):
            if id_ in known:
                met = yield from self._known_keys.meet(box, id_, draft, in_caller_tx=batch.in_caller_tx)
                receipts.append(met)
                wakes = wakes or (met.state is State.WAITING and met.status in _WAKES)
            else:
                superseded = yield from self._collapsing.supersede(box, id_, draft, before=id_)
                receipts.append(Receipt.of_new(id_, draft)._replace(superseded=superseded))
        if wakes:  # the insert has notified only for messages with new keys
            yield from self._notifications.send(box)
        return receipts


def _parts_with_distinct_keys(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Splits drafts where a key comes again, so that a bulk insert decides as inserts one by one would."""
    start, keys = 0, set[tuple[str, str]]()
    for index, draft in enumerate(drafts):
        key = (draft.message_id, draft.source)
        if key in keys:
            yield drafts[start:index]
            start, keys = index, set()
        keys.add(key)
    if start < len(drafts):
        yield drafts[start:]
