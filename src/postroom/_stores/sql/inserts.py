"""New rows: messages, and their rows in the queue."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from postroom._kernel.availability import Availability, first_availability
from postroom._stores.sql import rows
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.lines import line_of
from postroom._stores.sql.statements import Many, SqlProgram, Statement, StoredTime
from postroom.spi import Box, Draft


class NewRows:
    """Inserts messages and queue rows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def insert_messages(
        self, box: Box, first: int, drafts: Sequence[Draft], now: StoredTime
    ) -> SqlProgram[dict[int, Draft]]:
        """Inserts the drafts whose keys are new, under ids from `first` on; returns them by id."""
        given = dict(enumerate(drafts, first))
        if any(map(rows.has_options, drafts)):
            values = [
                rows.message_row(self._engine, box, id_, draft, self.expires(draft, now), now)
                for id_, draft in given.items()
            ]
            inserted = yield Many("insert_message", rows.MESSAGE_COLUMNS, values)
        else:
            content = self._engine.content
            values = [
                (id_, box.key, *draft[:3], content(draft.payload), draft.format, now, now)
                for id_, draft in given.items()
            ]
            inserted = yield Many("insert_plain_message", rows.PLAIN_COLUMNS, values)
        if inserted == len(given):
            return given
        found = yield Statement("find_inserted", {"first": first, "last": first + len(drafts) - 1})
        return {id_: given[id_] for (id_,) in found}

    def enqueue(
        self, box: Box, new: Mapping[int, Draft], now: StoredTime, *, asleep: Container[int] = frozenset()
    ) -> SqlProgram[None]:
        """Inserts the queue rows of new messages. `asleep`: ids that sleep until the first in their line leaves."""
        if not new:
            return
        if not box.order.fifo and not any(draft.due for draft in new.values()):
            yield Statement("enqueue_plain", {"first": min(new), "last": max(new)})
            return
        entries = []
        for id_, draft in new.items():
            availability = self._availability(box, draft, now, sleeps=id_ in asleep)
            progress = (rows.WAITING, *availability, line_of(box, draft))
            entries.append((id_, box.key, *progress, draft.collapse_key, self.expires(draft, now)))
        yield Many("enqueue", rows.QUEUE_COLUMNS, entries)

    def insert_seen(self, box: Box, id_: int, draft: Draft, now: StoredTime) -> SqlProgram[bool]:
        """Inserts a message of which only the key is known. Returns False if the key was known already."""
        row = rows.message_row(self._engine, box, id_, draft, None, now)
        inserted = yield Many("insert_message", rows.MESSAGE_COLUMNS, [row])
        if inserted:
            yield Many("enqueue", rows.QUEUE_COLUMNS, [(id_, box.key, rows.SEEN, None, False, None, None, None)])
        return bool(inserted)

    def enqueue_seen(self, box: Box, id_: int, draft: Draft, expires: StoredTime, now: StoredTime) -> SqlProgram[None]:
        """Makes a message wait of which only the key was known."""
        available_at, delayed = self._availability(box, draft, now, sleeps=False)
        yield Statement(
            "enqueue_seen",
            {
                "id": id_,
                "available_at": available_at,
                "delayed": delayed,
                "group_id": line_of(box, draft),
                "collapse_key": draft.collapse_key,
                "expires": expires,
            },
        )

    def expires(self, draft: Draft, now: StoredTime) -> StoredTime:
        """Returns the time at which the message expires, as the engine stores it."""
        if draft.expires is None and draft.lifetime is not None:
            return now + self._engine.duration(draft.lifetime)
        return self._engine.time(draft.expires)

    def _availability(self, box: Box, draft: Draft, now: StoredTime, *, sleeps: bool) -> Availability[StoredTime]:
        in_line = line_of(box, draft) is not None
        return first_availability(self._engine.time(draft.due), now, in_line=in_line, sleeps=sleeps)
