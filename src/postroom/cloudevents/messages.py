"""From events to messages, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from postroom._boxes.new_message import NewMessage
from postroom._kernel.message import AnyMessage
from postroom.cloudevents.event import CloudEvent, CloudEventError, is_json, make_event, to_text
from postroom.cloudevents.json_format import dump_json
from postroom.errors import ArgumentTypeError

PREFIX = "ce-"
CONTENT_TYPE = "content-type"
NO_DATA = "postroom-no-data"
"""A header of a message whose event had no data: a payload cannot be None."""
_OF_MESSAGE = frozenset({"id", "source", "type"})

GroupBy = str | Callable[[CloudEvent], str | None] | None
"""The name of an attribute, or a function of the event. None: messages have no group."""


def to_message(event: CloudEvent, *, group: GroupBy = None) -> NewMessage:
    """Returns an event as a message to enqueue.

    Source and id are the key, the type is the topic, the data are the payload, `time` is `received_at`. The other
    attributes are headers `ce-…`. The content hash is that of the data.

    Args:
        event: the event.
        group: the attribute that is the FIFO group, such as `"subject"` or `"partitionkey"`, or a function of the
            event. An event without it has no group.
    """
    attributes = {name: value for name, value in event.attributes().items() if name not in _OF_MESSAGE}
    headers = {f"{PREFIX}{name}": to_text(value) for name, value in attributes.items()}
    if event.datacontenttype is not None:
        headers[CONTENT_TYPE] = event.datacontenttype
    if event.data is None:
        headers[NO_DATA] = "true"
    return NewMessage(
        event.type,
        "" if event.data is None else event.data,
        source=event.source,
        message_id=event.id,
        group=_group(event, group),
        headers=headers,
        received_at=event.time,
        hash=_hash(event),
    )


def from_message(message: AnyMessage, *, source: str | None = None, type: str | None = None) -> CloudEvent:  # noqa: A002
    """Returns a message as an event: the inverse of `to_message`, and the event of a message of an outbox.

    Args:
        message: the message, as a handler or `find` has it.
        source: the source of the event. None: that of the message, which in an outbox is the name of the box.
        type: the type of the event. None: the topic.

    Raises:
        CloudEventError: a header `ce-…` is no valid attribute.
    """
    headers: Mapping[str, str] = {name.lower(): value for name, value in message.headers.items()}
    attributes: dict[str, Any] = {
        name.removeprefix(PREFIX): value for name, value in headers.items() if name.startswith(PREFIX)
    }
    attributes.update(
        specversion=attributes.get("specversion", "1.0"),
        id=message.message_id,
        source=source or message.source,
        type=type or message.topic,
    )
    return make_event(attributes, None if NO_DATA in headers else message.payload, headers.get(CONTENT_TYPE))


def _group(event: CloudEvent, group: GroupBy) -> str | None:
    if group is None:
        return None
    if callable(group):
        return group(event)
    if not isinstance(group, str):
        raise ArgumentTypeError(f"group must be the name of an attribute or a function, not {type(group).__name__}")
    value = event.attributes().get(group)
    return None if value is None else to_text(value)


def _hash(event: CloudEvent) -> bytes:
    data = event.data
    if isinstance(data, bytes):
        return hashlib.sha256(data).digest()
    if isinstance(data, str) and not is_json(event.datacontenttype):
        return hashlib.sha256(data.encode()).digest()
    try:
        return hashlib.sha256(dump_json(data)).digest()
    except UnicodeEncodeError:
        raise CloudEventError("the data contain a lone surrogate, which cannot be stored") from None
