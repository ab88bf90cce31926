"""The route `/v1/inboxes/{box}/messages`: programs in any language write to an inbox."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._boxes.new_message import NewMessage
from postroom._room.running import Postroom
from postroom.service import wire
from postroom.service.keys import decoded


class Messages:
    """Stores messages in the inboxes of a room."""

    def __init__(self, room: Postroom) -> None:
        self._room = room

    async def store(self, box: str, body: wire.AnyMessages) -> wire.Receipts:
        """Stores one message or several, in one transaction. Returns after the commit."""
        given: Sequence[wire.NewMessage] = body if isinstance(body, list) else [body]
        receipts = await self._room.inbox(box).enqueue_many([_message(each) for each in given])
        return wire.Receipts(
            receipts=[
                wire.StoredReceipt(status=receipt.status, source=receipt.source, message_id=receipt.message_id)
                for receipt in receipts
            ]
        )


def _message(given: wire.NewMessage) -> NewMessage:
    return NewMessage(
        given.topic,
        decoded("payload", given.payload, given.payload_encoding),
        source=given.source,
        message_id=given.message_id,
        correlation_id=given.correlation_id,
        due=given.due,
        group=given.group,
    )
