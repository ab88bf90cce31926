"""Assertions about what is in a box."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from postroom._faces import codec, typed
from postroom._faces.drafts import MISSING
from postroom._faces.sending import TypedMessage
from postroom._kernel.message import AnyMessage
from postroom.errors import ArgumentTypeError, Undecodable

MOST = 100_000
SHOWN = 10
"""How many messages the text of a failure shows."""


async def assert_enqueued(
    box: Any,
    topic: str | type | TypedMessage,
    payload: Any = MISSING,
    *,
    count: int | None = None,
    **fields: Any,
) -> list[AnyMessage]:
    """Assert that a box of either colour has messages like this, whatever became of them; returns them.

    `topic` may be a message type, to which the payloads of the result are then decoded; or a typed message, which is
    what must be there. `fields` are fields of a message: `source="stripe"`, `group="7"`. `count` is how many there must
    be; without it, at least one.
    """
    kind = topic if isinstance(topic, type) else None
    if typed.is_typed(topic):
        kind, payload = type(topic), topic
    name = topic if kind is None else typed.topic_of(kind)
    messages = await _find(box, topic=name)
    wanted = (payload, _as_stored(payload))
    fitting = [
        message
        for message in messages
        if (payload is MISSING or message.payload in wanted)
        and all(getattr(message, name) == value for name, value in fields.items())
    ]
    if bool(fitting) if count is None else len(fitting) == count:
        return [_decoded(message, kind) for message in fitting]
    number = "one" if count is None else str(count)
    others = [] if messages else sorted({message.topic for message in await _find(box)})
    raise AssertionError(
        f"wanted {number} like this in {box!r} on topic {name!r}, found {len(fitting)} of {len(messages)}\n"
        f"wanted: {_described(payload, fields)}\n"
        + "\n".join(_found(messages, fields))
        + (f"nothing on this topic; the box has {', '.join(map(repr, others))}" if others else "")
    )


async def assert_not_enqueued(
    box: Any, topic: str | type | TypedMessage, payload: Any = MISSING, **fields: Any
) -> None:
    await assert_enqueued(box, topic, payload, count=0, **fields)


async def _find(box: Any, **which: Any) -> list[AnyMessage]:
    found = box.find(**which, limit=MOST)
    messages: list[AnyMessage] = await found if inspect.isawaitable(found) else found
    return messages


def _as_stored(payload: Any) -> Any:
    """A payload as a box without handlers returns it: JSON is plain values again."""
    if payload is MISSING:
        return MISSING
    try:
        format_, data = codec.encode(payload)
    except ArgumentTypeError:
        return MISSING  # a matcher, say: it is compared as it is
    return codec.decoder(None)(data, format_)


def _decoded(message: AnyMessage, kind: type | None) -> AnyMessage:
    if kind is None:
        return message
    payload = codec.decoder(kind)(codec.encode_json(message.payload), "json")
    return message if isinstance(payload, Undecodable) else message.with_payload(payload)


def _described(payload: Any, fields: dict[str, Any]) -> str:
    shown = {} if payload is MISSING else {"payload": payload}
    return " ".join(f"{name}={value!r}" for name, value in {**shown, **fields}.items()) or "any payload"


def _found(messages: list[AnyMessage], fields: Iterable[str]) -> Iterable[str]:
    for message in messages[:SHOWN]:
        yield "found:  " + _described(message.payload, {name: getattr(message, name) for name in fields})
    if len(messages) > SHOWN:
        yield f"and {len(messages) - SHOWN} more"
