"""Inserting on PostgreSQL: one statement for messages, queue rows and the notification, in one round trip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from postroom._kernel.fields import COLUMNS, LABELS
from postroom._stores.sql import rows
from postroom._stores.sql.arrivals import Batch, Inserted
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.postgres.arrays import text_array
from postroom._stores.sql.postgres.notifications import PostgresNotifications
from postroom._stores.sql.statements import Parameters, SqlProgram, Statement
from postroom.spi import Box, Draft


class _Put(NamedTuple):
    """The row of the statements `put` and `put_plain`."""

    ids: list[int]
    known: list[int] | None
    notified: object

    def inserted(self) -> Inserted:
        return Inserted(self.ids, frozenset(self.known or ()))


class PostgresInserts:
    """Inserts a batch with one statement."""

    def __init__(self, engine: Engine, notifications: PostgresNotifications) -> None:
        self._engine = engine
        self._notifications = notifications

    def insert(self, box: Box, batch: Batch) -> SqlProgram[Inserted]:
        drafts = batch.drafts
        content = self._engine.content
        columns: Parameters = {
            "box": box.key,
            "channel": self._notifications.channel,
            "notify": self._notifications.should_notify(box, in_caller_tx=batch.in_caller_tx),
            "source": shared([draft.source for draft in drafts]),
            "message_id": text_array([draft[1] for draft in drafts]),
            "topic": shared([draft.topic for draft in drafts]),
            "payload": [content(draft.payload) for draft in drafts],
            "format": shared([draft.format for draft in drafts]),
        }
        # One message is complete with this statement, unless it supersedes others.
        autocommit = batch.is_whole_put and len(drafts) == 1 and drafts[0].collapse_key is None
        statement = "put_plain"
        if any(map(rows.has_options, drafts)):
            statement = "put"
            columns |= _options(drafts) | {"fifo": box.order.fifo}
        [row] = yield Statement(statement, columns, autocommit=autocommit)
        return _Put(*row).inserted()


def _options(drafts: Sequence[Draft]) -> dict[str, list[object] | None]:
    """Returns the optional columns. None instead of a list: the column is NULL in every row."""
    options: dict[str, list[object]] = {
        "headers": [json.dumps(draft.headers) if draft.headers else None for draft in drafts],
        **{COLUMNS[name]: list(map(attrgetter(name), drafts)) for name in LABELS},
        "hash": [draft.hash for draft in drafts],
        "hash_algorithm": [None if draft.hash is None else draft.hash_algorithm for draft in drafts],
        "due": [draft.due for draft in drafts],
        "expires": [draft.expires for draft in drafts],
        "lifetime": [draft.lifetime for draft in drafts],
        "received_at": [draft.received_at for draft in drafts],
    }
    return {name: None if values.count(None) == len(values) else values for name, values in options.items()}


def shared(values: list[str]) -> list[str]:
    """Returns one item if all are equal: a driver takes as long for an item of an array as the server for a row."""
    return values[:1] if values.count(values[0]) == len(values) else values
