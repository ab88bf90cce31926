"""Between rows and values: the columns of the views, and the parameters of a draft."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from postroom._stores.sql.engines.base import Engine
from postroom.spi import Box, Claim, Draft, Ending, Message, State, StoredMessage

STATES = (State.SEEN, State.WAITING, State.CLAIMED, State.DONE, State.DEAD)
CODES = {state: code for code, state in enumerate(STATES)}
SEEN, WAITING, CLAIMED, DONE, DEAD = range(5)

# Positions in the views postroom_work and postroom_entry.
ID, TOPIC, EXPIRES, STATE, DELIVERIES, OWNER, FENCE, AVAILABLE_AT, LINE = 0, 3, 12, 17, 19, 21, 22, 23, 27

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
        draft.payload,
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
    moment = engine.moment
    state, deliveries = STATES[row[STATE]], row[DELIVERIES]
    if claim is not None:
        state, deliveries = State.CLAIMED, deliveries + 1
    elif state is State.CLAIMED:
        claim = Claim(row[ID], UUID(row[OWNER]), row[FENCE], moment(row[AVAILABLE_AT]))
    first_seen = moment(row[14])
    completed_at, completed_by, ending = row[24:27]
    # The columns stand in the order of Message's fields. Its constructor would cost as much again as all of this.
    return tuple.__new__(
        Message,
        (
            *row[:6],
            json.loads(row[6]) if row[6] else {},
            *row[7:11],
            None if row[11] is None else moment(row[11]),
            None if row[12] is None else moment(row[12]),
            None if row[13] is None else moment(row[13]),
            first_seen,
            first_seen if row[15] == row[14] else moment(row[15]),
            row[16],
            state,
            row[18],
            deliveries,
            row[20],
            claim,
            None if completed_at is None else moment(completed_at),
            None if completed_by is None else UUID(completed_by),
            None if ending is None else Ending(ending),
            None,
        ),
    )
