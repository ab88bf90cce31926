"""Rows and values: the columns of tables and views, drafts as parameters, rows as messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from postroom._kernel.fields import COLUMNS, MESSAGE_FIELDS, MESSAGE_LABELS, labels_of
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.statements import Parameters, StoredTime
from postroom.spi import Box, Claim, Draft, Ending, Message, State, StoredMessage

Row = tuple[Any, ...]

STATES = (State.SEEN, State.WAITING, State.CLAIMED, State.DONE, State.DEAD)
"""The state of each code in the column `state`."""
CODES = {state: code for code, state in enumerate(STATES)}
SEEN, WAITING, CLAIMED, DONE, DEAD = range(5)

_CLAIM = MESSAGE_FIELDS.index("claim")
VIEW_COLUMNS = (
    *(COLUMNS[name] for name in MESSAGE_FIELDS[:_CLAIM]),
    *("owner", "fence", "available_at"),
    *("completed_at", "completed_by", "ending", "line", "box", "lost_leases", "waits_for"),
)
"""The columns of the views `postroom_work` and `postroom_entry`, in order. The claim is three of them."""
ID, EXPIRES, STATE, DELIVERIES, FENCE, LINE, LOST_LEASES, WAITS_FOR = map(
    VIEW_COLUMNS.index, ("id", "expires", "state", "deliveries", "fence", "line", "lost_leases", "waits_for")
)

_HEADERS_END = MESSAGE_LABELS.start
_LABELS_END = MESSAGE_LABELS.stop
_LABELS_AND_HASH = slice(_HEADERS_END, _LABELS_END + 1)

QUEUE_COLUMNS = ("id", "box", "state", "available_at", "delayed", "group_id", "collapse_key", "expires")
"""The parameters of the statement `enqueue`."""
_CONTENT = Draft._fields[: Draft._fields.index("received_at") + 1]
MESSAGE_COLUMNS = (
    *("id", "box"),
    *(COLUMNS.get(name, name) for name in _CONTENT if name != "lifetime"),
    *("first_seen", "last_seen"),
)
"""The parameters of the statement `insert_message`."""
PLAIN_COLUMNS = (*MESSAGE_COLUMNS[: MESSAGE_COLUMNS.index("headers")], "first_seen", "last_seen")
"""The parameters of the statement `insert_plain_message`: the columns that every message has."""
_OPTIONS = slice(Draft._fields.index("headers"), Draft._fields.index("received_at") + 1)
_NO_OPTIONS = Draft("", "")[_OPTIONS]


class KnownKey(NamedTuple):
    """A message that has a key: a row of the statements `find_key`, `lock_key` and `lock_message_of_key`."""

    id: int
    state: int
    hash: bytes | None
    hash_algorithm: str | None
    first_seen: StoredTime
    revision: int
    group_id: str | None
    topic: str
    line: str | None
    """The group in whose FIFO line it is. This and the next three are None without a queue row."""
    available_at: StoredTime
    fence: int | None
    delayed: bool | None
    is_continuation: bool
    """Whether it is the continuation of a join."""


def has_options(draft: Draft) -> bool:
    """Returns True if the draft has a value for a column outside PLAIN_COLUMNS."""
    return draft[_OPTIONS] != _NO_OPTIONS


def message_row(engine: Engine, box: Box, id_: int, draft: Draft, expires: StoredTime, now: StoredTime) -> Row:
    """Returns a draft as a row, in the order of MESSAGE_COLUMNS."""
    return (
        id_,
        box.key,
        draft.source,
        draft.message_id,
        draft.topic,
        engine.content(draft.payload),
        draft.format,
        json.dumps(draft.headers) if draft.headers else None,
        *labels_of(draft),
        draft.hash,
        draft.hash_algorithm if draft.hash is not None else None,
        engine.time(draft.due),
        expires,
        engine.time(draft.received_at),
        now,
        now,
    )


def message_parameters(
    engine: Engine, box: Box, id_: int, draft: Draft, expires: StoredTime, now: StoredTime
) -> Parameters:
    """Returns a draft as named parameters."""
    return dict(zip(MESSAGE_COLUMNS, message_row(engine, box, id_, draft, expires, now), strict=True))


def message_of(engine: Engine, row: Row, claim: Claim | None = None) -> StoredMessage:
    """Returns a row of a view as a message. `claim`: the row was claimed after it was read."""
    id_, source, message_id, topic, payload, format_, headers = row[:_HEADERS_END]
    # fmt: off
    (
        hash_, due, expires, received_at, first_seen, last_seen, revision, code, attempt, deliveries, last_error,
        owner, fence, available_at, completed_at, completed_by, ending, _line, _box, lost_leases,
        _waits_for,
    ) = row[_LABELS_END:]
    # fmt: on
    moment = engine.moment
    state = STATES[code]
    if claim is not None:
        state = State.CLAIMED
        deliveries += 1
    elif state is State.CLAIMED:
        claim = Claim(id_, engine.owner(owner), fence, moment(available_at))
    seen = moment(first_seen)
    # The constructor of Message takes as long as all of this.
    return tuple.__new__(
        Message,
        (
            id_,
            source,
            message_id,
            topic,
            engine.payload(payload, format_),
            format_,
            json.loads(headers) if headers else {},
            *row[MESSAGE_LABELS],
            hash_,
            None if due is None else moment(due),
            None if expires is None else moment(expires),
            None if received_at is None else moment(received_at),
            seen,
            seen if last_seen == first_seen else moment(last_seen),
            revision,
            state,
            attempt,
            deliveries,
            last_error,
            claim,
            None if completed_at is None else moment(completed_at),
            None if completed_by is None else engine.owner(completed_by),
            None if ending is None else Ending(ending),
            lost_leases or 0,
            None,
        ),
    )


_TIMES = slice(MESSAGE_FIELDS.index("due"), MESSAGE_FIELDS.index("last_seen") + 1)
_FIRST_SEEN = MESSAGE_FIELDS.index("first_seen") - MESSAGE_FIELDS.index("due")
_REVISION = MESSAGE_FIELDS.index("revision")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NO_END = (None, None, None)


def claimed(engine: Engine, found: Iterable[Row], owner: UUID, until: datetime) -> list[StoredMessage]:
    """Returns claimed messages. A row has the fields of a message up to its revision, then attempt, deliveries, last
    error, fence and lost leases. This runs for every message of a worker: it copies slices and converts little.
    """
    payload, new = engine.payload, tuple.__new__
    utc = engine.moment(until)
    messages: list[StoredMessage] = []
    for row in found:
        times = row[_TIMES]
        if times[_FIRST_SEEN].tzinfo is not UTC:
            times = tuple(None if time is None else engine.moment(time) for time in times)
        id_, source, message_id, topic, content, format_, headers = row[:_HEADERS_END]
        revision, attempt, deliveries, last_error, fence, lost_leases = row[_REVISION : _REVISION + 6]
        messages.append(
            new(
                Message,
                (
                    id_,
                    source,
                    message_id,
                    topic,
                    payload(content, format_),
                    format_,
                    _NO_HEADERS if headers is None else json.loads(headers),
                    *row[_LABELS_AND_HASH],
                    *times,
                    revision,
                    State.CLAIMED,
                    attempt,
                    deliveries,
                    last_error,
                    new(Claim, (id_, owner, fence, utc)),
                    *_NO_END,
                    lost_leases,
                    None,
                ),
            )
        )
    return messages
