"""The route `/v1/inboxes/{box}/messages`: programs in any language write to an inbox."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from http import HTTPStatus

import msgspec

from postroom._boxes.new_message import NewMessage
from postroom._room.running import Postroom
from postroom._stores.http import wire
from postroom.service.keys import decoded
from postroom.service.problems import Refused


class Messages:
    """Stores messages in the inboxes of a room."""

    def __init__(self, room: Postroom, fifo: Collection[str]) -> None:
        """`fifo`: the names of the inboxes that keep the order of groups."""
        self._room = room
        self._fifo = fifo

    async def store(self, box: str, body: wire.AnyMessages) -> wire.Receipts:
        """Stores one message or several, in one transaction. Returns after the commit."""
        given: Sequence[wire.NewMessage] = body if isinstance(body, list) else [body]
        inbox = self._room.inbox(box, order="fifo") if box in self._fifo else self._room.inbox(box)
        receipts = await inbox.enqueue_many([_message(each) for each in given])
        return wire.Receipts(
            receipts=[
                wire.StoredReceipt(
                    receipt.status,
                    receipt.source,
                    receipt.message_id,
                    receipt.id,
                    receipt.state,
                    updated=receipt.updated,
                    replaced_under_lease=receipt.replaced_under_lease,
                )
                for receipt in receipts
            ]
        )


def _message(given: wire.NewMessage) -> NewMessage:
    return NewMessage(
        given.topic,
        _payload(given),
        source=given.source,
        message_id=given.message_id,
        correlation_id=given.correlation_id,
        due=given.due,
        group=given.group,
        headers=given.headers,
        expires=given.expires,
        received_at=given.received_at,
        hash=None if given.hash is None else bytes.fromhex(given.hash),
        hash_algorithm=given.hash_algorithm,
        on_conflict=given.on_conflict,
        revive_dead=given.revive_dead,
        on_duplicate=given.on_duplicate,
    )


def _payload(given: wire.NewMessage) -> object:
    try:
        value = msgspec.json.decode(given.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused(HTTPStatus.BAD_REQUEST, "payload must be valid JSON") from None
    if given.payload_encoding == "document":
        return given.payload
    return decoded("payload", value, given.payload_encoding)
