"""Assertions about the messages of a box."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from postroom._boxes import codec, typed_messages
from postroom._boxes.inbox import Inbox, SyncInbox
from postroom._boxes.new_message import MISSING, TypedMessage
from postroom._boxes.outbox import Outbox, SyncOutbox
from postroom._kernel.message import AnyMessage
from postroom.errors import ArgumentTypeError, Undecodable

AnyBox = Inbox | Outbox | SyncInbox | SyncOutbox

MAX_FOUND = 100_000
MAX_SHOWN = 10
"""Messages in the text of a failure."""


async def assert_enqueued(
    box: AnyBox,
    topic: str | type | TypedMessage,
    payload: object = MISSING,
    *,
    count: int | None = None,
    **fields: object,
) -> list[AnyMessage]:
    """Asserts that a box of either mode has such messages, in any state, and returns them.

    Args:
        box: an inbox or outbox, async or sync.
        topic: the topic; or a message type, to which payloads are then decoded; or a typed message that must be there.
        payload: what the payload must be equal to. Left out: any.
        count: how many messages there must be. None: at least one.
        fields: fields of a message: `source="stripe"`, `group="7"`.

    Raises:
        AssertionError: with the messages that are there.
    """
    kind = topic if isinstance(topic, type) else None
    if typed_messages.is_typed(topic):
        kind, payload = type(topic), topic
    name: Any = topic if kind is None else typed_messages.topic_of(kind)
    messages = await _find(box, topic=name)
    wanted = (payload, _as_stored(payload))
    matching = [
        message
        for message in messages
        if (payload is MISSING or message.payload in wanted)
        and all(getattr(message, name) == value for name, value in fields.items())
    ]
    if bool(matching) if count is None else len(matching) == count:
        return [_decoded(message, kind) for message in matching]
    number = "one" if count is None else str(count)
    others = [] if messages else sorted({message.topic for message in await _find(box)})
    raise AssertionError(
        f"wanted {number} like this in {box!r} on topic {name!r}, found {len(matching)} of {len(messages)}\n"
        f"wanted: {_described(payload, fields)}\n"
        + "\n".join(_found(messages, fields))
        + (f"nothing on this topic; the box has {', '.join(map(repr, others))}" if others else "")
    )


async def assert_not_enqueued(
    box: AnyBox, topic: str | type | TypedMessage, payload: object = MISSING, **fields: object
) -> None:
    """Asserts that a `box` has no such message. `topic`, `payload` and `fields` are those of `assert_enqueued`."""
    await assert_enqueued(box, topic, payload, count=0, **fields)


async def _find(box: AnyBox, topic: str | None = None) -> list[AnyMessage]:
    found = box.find(topic=topic, limit=MAX_FOUND)
    return found if isinstance(found, list) else await found


def _as_stored(payload: object) -> object:
    """Returns a payload as a box without handlers returns it: JSON values."""
    if payload is MISSING:
        return MISSING
    try:
        format_, data = codec.encode(payload)
    except ArgumentTypeError:
        return MISSING  # a matcher of a test library, for example: it is compared as it is
    return codec.Decoder(None)(data, format_)


def _decoded(message: AnyMessage, kind: type | None) -> AnyMessage:
    if kind is None:
        return message
    payload = codec.Decoder(kind)(codec.encode_json(message.payload), "json")
    return message if isinstance(payload, Undecodable) else message.with_payload(payload)


def _described(payload: object, fields: dict[str, object]) -> str:
    shown = {} if payload is MISSING else {"payload": payload}
    return " ".join(f"{name}={value!r}" for name, value in {**shown, **fields}.items()) or "any payload"


def _found(messages: list[AnyMessage], fields: Iterable[str]) -> Iterable[str]:
    for message in messages[:MAX_SHOWN]:
        yield "found:  " + _described(message.payload, {name: getattr(message, name) for name in fields})
    if len(messages) > MAX_SHOWN:
        yield f"and {len(messages) - MAX_SHOWN} more"
