"""Reads messages from replies of scripts.

A reply has the ids of messages in one string, and their packed contents as a list of strings. A script may have joined
several contents to one string (`join_rows` in lib/entries.lua).
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from datetime import datetime
from struct import iter_unpack
from typing import Any
from uuid import UUID

import msgspec

from postroom._kernel.clock import EPOCH, from_microseconds
from postroom._kernel.fields import LABELS
from postroom._stores.redis.codec import ID_DIGITS, STATES
from postroom._stores.redis.layout import CONTENT
from postroom.spi import Claim, Ending, Message, State, StoredMessage


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """A record in `states`. The order of the fields is that of `layout.PROGRESS`."""

    state: str
    fence: int
    attempt: int
    deliveries: int
    revision: int
    last_seen: int
    expires: int
    owner: str
    stale: int
    completed_at: int
    ending: str
    last_error: str | bool
    lost_leases: int
    delayed: bool


_CONTENT_TYPES: dict[str, object] = {
    "first_seen": int,
    "topic": str,
    "source": str,
    "message_id": str,
    "format": str,
    **dict.fromkeys(LABELS, str | None),
    "due": int | None,
    "hash": str | None,
    "hash_algorithm": str,
    "received_at": int | None,
    "headers": dict[str, str] | None,
    "payload": Any,
}
_ROW: Any = tuple(_CONTENT_TYPES[name] for name in CONTENT)
"""The types of a content. msgspec decodes a tuple of known types faster than a list of anything."""
_FOUND_ROW: Any = (*_ROW, Progress, int)
"""With the progress, and the end of the lease or 0."""
_LABELS = slice(CONTENT.index(LABELS[0]), CONTENT.index(LABELS[-1]) + 1)
"""The position of the labels in a row. `Message` has them in the same order."""
_decode_claimed = msgspec.msgpack.Decoder(list[tuple[_ROW]]).decode
_decode_found = msgspec.msgpack.Decoder(list[tuple[_FOUND_ROW]]).decode
_decode_head = msgspec.msgpack.Decoder(tuple[int, tuple[int, int] | None, str, list[tuple[Progress, int]]]).decode
"""The first string in the reply of a claim."""
_ENDINGS = {ending.value: ending for ending in Ending}


def claimed_messages(reply: Sequence[bytes], owner: UUID) -> tuple[list[StoredMessage], tuple[int, int] | None]:
    """Returns claimed messages; and `skip` for the next call, or None if the script has read all candidates.

    lib/claims.lua describes the reply.
    """
    lease_end, skip, ids, runs = _decode_head(reply[0])
    messages: list[StoredMessage] = []
    if runs:
        numbers, until = _numbers(ids.encode()), from_microseconds(lease_end)
        rows = _decode_claimed(_array(len(numbers), reply[1:], len(_ROW)))
        for progress, count in runs:
            run = slice(len(messages), len(messages) + count)
            messages += _messages(numbers[run], rows[run], progress, State.CLAIMED, owner, until)
    return messages, skip


def found_messages(ids: bytes, contents: Sequence[bytes]) -> list[StoredMessage]:
    """Returns messages that a filter has found."""
    numbers = _numbers(ids)
    messages: list[StoredMessage] = []
    for number, row in zip(numbers, _decode_found(_array(len(numbers), contents, len(_FOUND_ROW))), strict=True):
        content, (progress, lease_end) = row[: len(_ROW)], row[len(_ROW) :]
        owner = UUID(hex=progress.owner) if progress.owner else None
        until = from_microseconds(lease_end)
        messages += _messages([number], [content], progress, STATES[progress.state], owner, until)
    return messages


def _numbers(ids: bytes) -> list[int]:
    return [int(digits) for (digits,) in iter_unpack(f"{ID_DIGITS}s", ids)]


def _array(count: int, contents: Sequence[bytes], fields: int) -> bytes:
    """Returns the packed contents as one MessagePack array of `count` arrays of `fields` values."""
    header = b"\xdc" + fields.to_bytes(2, "big")
    return b"".join((b"\xdd", count.to_bytes(4, "big"), header if contents else b"", header.join(contents)))


def _messages(
    numbers: Sequence[int],
    rows: Sequence[tuple[Any, ...]],
    progress: Progress,
    state: State,
    owner: UUID | None,
    until: datetime,
) -> list[StoredMessage]:
    """Returns messages that have the same progress.

    This runs for every claimed message, so it computes once what the messages share, and bypasses the constructors.
    """
    is_claimed, completed_by = state is State.CLAIMED, owner if state is State.DONE else None
    fence, attempt, deliveries, revision = progress.fence, progress.attempt, progress.deliveries, progress.revision
    expires, last_seen, completed_at = map(_time_or_none, (progress.expires, progress.last_seen, progress.completed_at))
    last_error = None if progress.last_error is False else progress.last_error
    ending, lost_leases = _ENDINGS.get(progress.ending), progress.lost_leases
    new, time, messages = tuple.__new__, from_microseconds, list[StoredMessage]()
    earlier, first_seen = 0, EPOCH
    for id_, row in zip(numbers, rows, strict=True):
        seen, topic, source, message_id, format_ = row[: _LABELS.start]
        due, hash_, _, received_at, headers, payload = row[_LABELS.stop :]
        if seen != earlier:  # messages that were put together have the same time
            earlier, first_seen = seen, time(seen)
        head = (id_, source, message_id, topic, payload, format_, headers or {})
        tail = (
            None if hash_ is None else unhexlify(hash_),
            None if due is None else time(due),
            expires,
            None if received_at is None else time(received_at),
            first_seen,
            last_seen or first_seen,
            revision,
            state,
            attempt,
            deliveries,
            last_error,
            new(Claim, (id_, owner, fence, until)) if is_claimed else None,
            completed_at,
            completed_by,
            ending,
            lost_leases,
            None,
        )
        messages.append(new(Message, head + row[_LABELS] + tail))
    return messages


def _time_or_none(value: int) -> datetime | None:
    return from_microseconds(value) if value else None
