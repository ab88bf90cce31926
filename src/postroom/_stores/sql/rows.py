"""Between rows and values: the columns of the views, and the parameters of a draft."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from postroom._stores.sql.engines.base import Engine
from postroom.spi import Box, Claim, Draft, Ending, Message, State, StoredMessage

STATES = (State.SEEN, State.WAITING, State.CLAIMED, State.DONE, State.DEAD)
CODES = {state: code for code, state in enumerate(STATES)}
SEEN, WAITING, CLAIMED, DONE, DEAD = range(5)

# Positions in the views postroom_work and postroom_entry.
ID, EXPIRES, DELIVERIES, FENCE, LINE, LOST_LEASES = 0, 12, 19, 22, 27, 29

ENTRY_COLUMNS = ("id", "box", "state", "available_at", "fence", "group_id", "collapse_key", "expires")
"""Of a row of the queue, as it enters."""
MESSAGE_COLUMNS = (
    "id",
    "box",
    "source",
    "message_id",
    "topic",
    "payload",
    "format",
    "headers",
    "correlation_id",
    "group_id",
    "collapse_key",
    "hash",
    "hash_algorithm",
    "due",
    "expires",
    "received_at",
    "first_seen",
    "last_seen",
)


PLAIN_COLUMNS = (*MESSAGE_COLUMNS[:7], "first_seen", "last_seen")
_OPTIONS = slice(5, 15)


def has_options(draft: Draft) -> bool:
    """Whether a draft fills any column besides those of every message."""
    return draft[_OPTIONS] != _NO_OPTIONS


_NO_OPTIONS = Draft("", "")[_OPTIONS]


def message_row(engine: Engine, box: Box, id_: int, draft: Draft, expires: Any, now: Any) -> tuple[Any, ...]:
    """A draft as the parameters of `insert_message`, in the order of MESSAGE_COLUMNS."""
    return (
        id_,
        box.key,
        draft.source,
        draft.message_id,
        draft.topic,
        engine.content(draft.payload),
        draft.format,
        json.dumps(draft.headers) if draft.headers else None,
        draft.correlation_id,
        draft.group,
        draft.collapse_key,
        draft.hash,
        draft.hash_algorithm if draft.hash is not None else None,
        engine.time(draft.due),
        expires,
        engine.time(draft.received_at),
        now,
        now,
    )


def message_of(engine: Engine, row: tuple[Any, ...], claim: Claim | None = None) -> StoredMessage:
    """A row of a view as a message; `claim` where the row was read before it was claimed."""
    # fmt: off
    (
        id_, source, message_id, topic, payload, format_, headers, correlation_id, group, collapse_key, hash_,
        due, expires, received_at, first_seen, last_seen, revision, code, attempt, deliveries, last_error,
        owner, fence, available_at, completed_at, completed_by, ending, _line, _box, lost_leases,
    ) = row
    # fmt: on
    moment = engine.moment
    state = STATES[code]
    if claim is not None:
        state = State.CLAIMED
        deliveries += 1
    elif state is State.CLAIMED:
        claim = Claim(id_, engine.owner(owner), fence, moment(available_at))
    seen = moment(first_seen)
    # Message's own constructor would cost as much again as all of this.
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
            correlation_id,
            group,
            collapse_key,
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


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NO_END = (None, None, None)


def claimed(engine: Engine, found: Iterable[Any], owner: UUID, until: datetime) -> list[StoredMessage]:
    """Messages that were just claimed, from lean rows: a message up to its revision, then attempt, deliveries, error,
    fence and lost leases. This runs for every message that is worked on: it copies slices, and converts little.
    """
    payload, new, moments = engine.payload, tuple.__new__, slice(11, 16)
    utc = engine.moment(until)
    messages: list[StoredMessage] = []
    for row in found:
        times = row[moments]
        if times[3].tzinfo is not UTC:
            times = tuple(None if time is None else engine.moment(time) for time in times)
        messages.append(
            new(
                Message,
                (
                    *row[0:4],
                    payload(row[4], row[5]),
                    row[5],
                    _NO_HEADERS if row[6] is None else json.loads(row[6]),
                    *row[7:11],
                    *times,
                    row[16],
                    State.CLAIMED,
                    *row[17:20],
                    new(Claim, (row[0], owner, row[20], utc)),
                    *_NO_END,
                    row[21],
                    None,
                ),
            )
        )
    return messages
