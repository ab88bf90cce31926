"""How transports carry events: the names and the encoding of headers, and which mode a delivery has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from postroom.cloudevents.event import AttributeValue, CloudEvent, CloudEventError, is_json, make_event, to_text
from postroom.cloudevents.json_format import (
    BATCHED,
    STRUCTURED,
    Encoded,
    dump_json,
    from_batch,
    from_structured,
    load_json,
)

__all__ = ["AMQP", "HTTP", "KAFKA", "NATS", "Binding", "Encoded", "Headers", "decode", "is_cloud_event", "to_binary"]

Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]
"""Names and values, as str or bytes. AMQP also has values of other types."""

_ANY_FORMAT = re.compile(r"application/cloudevents(-batch)?(\+[^;\s]*)?")
_VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Binding:
    """How one transport writes the attributes of an event into headers."""

    name: str
    prefix: str
    """Before the name of an attribute, in what is written."""
    accepted: tuple[str, ...]
    """Prefixes that are read, in lower case."""
    percent: bool
    """Whether values are percent-encoded, as headers of HTTP have to be."""


HTTP = Binding("HTTP", "ce-", ("ce-",), percent=True)
AMQP = Binding("AMQP", "cloudEvents_", ("ce-", "cloudevents:", "cloudevents_"), percent=False)
KAFKA = Binding("Kafka", "ce_", ("ce_",), percent=False)
NATS = Binding("NATS", "ce-", ("ce-",), percent=True)


def decode(headers: Headers, body: bytes, binding: Binding = HTTP) -> list[CloudEvent]:
    """Returns the events of a delivery: one in structured or binary mode, any number in batched mode.

    Args:
        headers: the headers, as a mapping or as pairs. `content-type` may be one of them, or a property of the
            message that you add.
        body: the raw body.
        binding: the transport: `HTTP`, `AMQP`, `KAFKA` or `NATS`.

    Raises:
        CloudEventError: it is not a CloudEvent, or an attribute is missing or bad. Nothing is generated.
    """
    content_type, attributes = _read(headers, binding)
    found = _format_of(content_type)
    if found == STRUCTURED:
        return [from_structured(body)]
    if found == BATCHED:
        return from_batch(body)
    if found is not None:
        raise CloudEventError("the events are in another format than JSON, which is not understood")
    if not attributes:
        raise CloudEventError(
            f"this is not a CloudEvent: it has neither the content type {STRUCTURED} nor headers {binding.prefix}…"
        )
    given = attributes.pop("datacontenttype", None)
    media_type = content_type or (given if isinstance(given, str) else None)
    return [make_event(attributes, _binary_data(body, media_type), media_type)]


def is_cloud_event(headers: Headers, binding: Binding = HTTP) -> bool:
    """Returns True if the headers are those of a CloudEvent, valid or not.

    Args:
        headers: the headers, as a mapping or as pairs.
        binding: the transport.
    """
    pairs = [(_text(name).lower(), value) for name, value in _pairs(headers)]
    if any(name == "content-type" and _format_of(_text(value)) is not None for name, value in pairs):
        return True
    return any(name.startswith(binding.accepted) and name.endswith("specversion") for name, _ in pairs)


def to_binary(event: CloudEvent, binding: Binding = HTTP) -> Encoded:
    """Returns an event in binary mode: attributes in headers, data in the body.

    Args:
        event: the event.
        binding: the transport: `HTTP`, `AMQP`, `KAFKA` or `NATS`. In AMQP, move `content-type` to the property of
            the message. In Kafka, use the extension `partitionkey` as the key.

    Raises:
        CloudEventError: the data do not fit the media type.
    """
    headers = {f"{binding.prefix}{name}": _to_header(value, binding) for name, value in event.attributes().items()}
    media_type, data = event.datacontenttype, event.data
    if data is None:
        body = b""
    elif isinstance(data, bytes):
        body = data
    elif is_json(media_type):
        # Without a media type the data are JSON in structured mode. In binary mode this has to be said.
        body, media_type = dump_json(data), media_type or "application/json"
    elif isinstance(data, str):
        body = data.encode()
    else:
        raise CloudEventError("the media type of the data is not JSON, so the data must be bytes or a str")
    if media_type is not None:
        headers["content-type"] = media_type
    return Encoded(headers, body)


def _binary_data(body: bytes, media_type: str | None) -> Any:
    """Returns JSON as its value, any other data as bytes. Without a media type, the data are bytes."""
    if not body:
        return None
    return load_json(body) if media_type is not None and is_json(media_type) else body


def _format_of(content_type: str | None) -> str | None:
    """Returns the format if the content type is one of CloudEvents."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    return media_type if _ANY_FORMAT.fullmatch(media_type) else None


def _pairs(headers: Headers) -> Iterable[tuple[Any, Any]]:
    return headers.items() if isinstance(headers, Mapping) else headers


def _read(headers: Headers, binding: Binding) -> tuple[str | None, dict[str, AttributeValue]]:
    """Returns the content type and the attributes that the headers have."""
    content_type: str | None = None
    attributes: dict[str, AttributeValue] = {}
    for raw_name, value in _pairs(headers):
        name = _text(raw_name).lower()
        if name == "content-type":
            content_type = _text(value) or None
            continue
        prefix = next((prefix for prefix in binding.accepted if name.startswith(prefix)), None)
        if prefix is None:
            continue
        attribute = name.removeprefix(prefix)
        if attribute in attributes:
            raise CloudEventError("an attribute of the event occurs twice in the headers")
        native = attribute == "time" and type(value) is int
        attributes[attribute] = _from_milliseconds(value) if native else _from_header(value, binding)
    return content_type, attributes


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise CloudEventError("the name of a header or the content type is not text")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CloudEventError("a header is not UTF-8") from None


def _from_milliseconds(value: int) -> datetime:
    """Returns a timestamp of AMQP, which is a number in some libraries."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)
    except OverflowError:
        raise CloudEventError("time is outside of what a datetime can say") from None


def _to_header(value: AttributeValue, binding: Binding) -> str:
    text = to_text(value)
    return quote(text, safe=_VISIBLE) if binding.percent else text


def _from_header(value: object, binding: Binding) -> Any:
    if not isinstance(value, str | bytes):
        return value  # a native type of AMQP: the event checks it
    text = _text(value)
    if not binding.percent:
        return text
    if not text.isascii():
        raise CloudEventError("a header contains characters that are not ASCII: they have to be percent-encoded")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = _ESCAPED.sub(r"\1", text[1:-1])
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise CloudEventError("a percent-encoded header is not UTF-8") from None
