"""The JSON format: an event, or a batch of events, as one JSON text with its data."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from postroom.cloudevents.event import AttributeValue, CloudEvent, CloudEventError, make_event, to_text

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"


class Encoded(NamedTuple):
    """An event as a transport carries it."""

    headers: dict[str, str]
    """With `content-type`, which is a property of its own in AMQP."""
    body: bytes


def to_structured(event: CloudEvent) -> Encoded:
    """Returns one event in structured mode: the body has all of it. The same for every transport.

    Args:
        event: the event.

    Raises:
        CloudEventError: the data have no JSON form.
    """
    return Encoded({"content-type": f"{STRUCTURED}; charset=UTF-8"}, dump_json(_to_object(event)))


def to_batch(events: Iterable[CloudEvent]) -> Encoded:
    """Returns events in batched mode: a JSON array. It may be empty.

    Args:
        events: the events.

    Raises:
        CloudEventError: the data of an event have no JSON form.
    """
    return Encoded({"content-type": f"{BATCHED}; charset=UTF-8"}, dump_json([_to_object(event) for event in events]))


def from_structured(body: bytes) -> CloudEvent:
    """Returns the event of a body in structured mode."""
    return _from_object(load_json(body))


def from_batch(body: bytes) -> list[CloudEvent]:
    """Returns the events of a body in batched mode."""
    loaded = load_json(body)
    if not isinstance(loaded, list):
        raise CloudEventError("a batch of events is a JSON array, and the body is none")
    return [_from_object(item) for item in loaded]


def load_json(body: bytes) -> Any:
    """Returns the value of a JSON text in UTF-8. Raises CloudEventError for anything else."""
    try:
        return json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise CloudEventError("the body is not valid JSON") from None


def dump_json(value: object) -> bytes:
    """Returns a value as JSON. Raises CloudEventError if it has no JSON form."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CloudEventError(f"the data of the event have no JSON form ({type(error).__name__})") from None


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON


def _to_object(event: CloudEvent) -> dict[str, object]:
    made: dict[str, object] = {name: _to_json(value) for name, value in event.attributes().items()}
    if event.datacontenttype is not None:
        made["datacontenttype"] = event.datacontenttype
    if isinstance(event.data, bytes):
        made["data_base64"] = to_text(event.data)
    elif event.data is not None:
        if not event.has_json and not isinstance(event.data, str):
            raise CloudEventError("the media type of the data is not JSON, so the data must be bytes or a str")
        made["data"] = event.data
    return made


def _to_json(value: AttributeValue) -> object:
    return to_text(value) if isinstance(value, bytes | datetime) else value


def _from_object(loaded: object) -> CloudEvent:
    if not isinstance(loaded, Mapping):
        raise CloudEventError("an event is a JSON object, and the body is none")
    attributes = dict(loaded)
    content_type = attributes.pop("datacontenttype", None)
    data, encoded = attributes.pop("data", None), attributes.pop("data_base64", None)
    if encoded is not None:
        if data is not None:
            raise CloudEventError("the event has data and data_base64: only one of them is allowed")
        data = _from_base64(encoded)
    return make_event(attributes, data, content_type)


def _from_base64(encoded: object) -> bytes:
    try:
        # A value that is not text raises TypeError; text that is not ASCII raises ValueError.
        return base64.b64decode(encoded, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise CloudEventError("data_base64 is not base64") from None
