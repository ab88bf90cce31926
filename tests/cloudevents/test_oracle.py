"""The codec next to the official SDK: each reads what the other writes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as SdkEvent

from postroom.cloudevents import AMQP, HTTP, KAFKA, CloudEvent, decode, to_binary, to_structured

FORMAT = JSONFormat()
TIME = datetime(2018, 4, 5, 17, 31, tzinfo=UTC)
ATTRIBUTES: dict[str, Any] = {
    "id": 'A "1" 100%',
    "source": "/mycontext/ä",
    "type": "com.example.someevent",
    "specversion": "1.0",
    "time": TIME,
    "subject": "Euro € 😀",
    "dataschema": "https://example.com/schema",
    "comexampleextension1": "value",
}
CONTENTS = [
    ("application/json", {"much": "wow", "number": 1.5}),
    ("application/vnd.example+json", {"a": [1, None, "ä"]}),
    ("text/xml", "<much/>"),
    ("application/octet-stream", b"\x00\xff"),
]


def ours(content_type: str, data: Any) -> CloudEvent:
    return CloudEvent(
        id=ATTRIBUTES["id"],
        source=ATTRIBUTES["source"],
        type=ATTRIBUTES["type"],
        time=TIME,
        subject=ATTRIBUTES["subject"],
        dataschema=ATTRIBUTES["dataschema"],
        extensions={"comexampleextension1": "value"},
        datacontenttype=content_type,
        data=data,
    )


def theirs(content_type: str, data: Any) -> SdkEvent:
    return SdkEvent({**ATTRIBUTES, "datacontenttype": content_type}, data)


def same(event: CloudEvent, data: Any, expected: CloudEvent) -> None:
    """Text that is not JSON is bytes in binary mode: nothing says which characters they are."""
    text = expected.data.encode() if isinstance(expected.data, str) and isinstance(data, bytes) else expected.data
    assert data == text
    assert event.attributes() == expected.attributes()
    assert event.datacontenttype == expected.datacontenttype


def read_by_sdk(read: Any, expected: CloudEvent) -> None:
    attributes = {**read.get_attributes()}
    assert attributes.pop("datacontenttype") == expected.datacontenttype
    assert attributes == expected.attributes()
    data = read.get_data()
    assert (data.decode() if isinstance(data, bytes) and isinstance(expected.data, str) else data) == expected.data


@pytest.mark.parametrize(("content_type", "data"), CONTENTS)
def test_http(content_type: str, data: Any) -> None:
    event = ours(content_type, data)
    for sent in (
        http.to_binary(theirs(content_type, data), FORMAT),
        http.to_structured(theirs(content_type, data), FORMAT),
    ):
        [read] = decode(sent.headers, sent.body, HTTP)
        same(read, read.data, event)
    read_by_sdk(http.from_http(http.HTTPMessage(*to_binary(event)), FORMAT), event)
    read_by_sdk(http.from_http(http.HTTPMessage(*to_structured(event)), FORMAT), event)
    assert to_binary(event).headers == {
        name.lower(): value for name, value in http.to_binary(theirs(content_type, data), FORMAT).headers.items()
    }


@pytest.mark.parametrize(("content_type", "data"), CONTENTS)
def test_kafka(content_type: str, data: Any) -> None:
    event = ours(content_type, data)
    for sent in (
        kafka.to_binary(theirs(content_type, data), FORMAT),
        kafka.to_structured(theirs(content_type, data), FORMAT),
    ):
        [read] = decode(sent.headers, sent.value, KAFKA)
        same(read, read.data, event)
    headers, body = to_binary(event, KAFKA)
    encoded = {name: value.encode() for name, value in headers.items()}
    read_by_sdk(kafka.from_kafka(kafka.KafkaMessage(encoded, None, body), FORMAT), event)


@pytest.mark.parametrize(("content_type", "data"), CONTENTS)
def test_amqp(content_type: str, data: Any) -> None:
    event = ours(content_type, data)
    for made in (amqp.to_binary, amqp.to_structured):
        sent = made(theirs(content_type, data), FORMAT)
        [read] = decode({**sent.application_properties, **sent.properties}, sent.application_data, AMQP)
        same(read, read.data, event)
    for other in (rabbitmq.to_binary, rabbitmq.to_structured):
        message = other(theirs(content_type, data), FORMAT)
        [read] = decode({**message.headers, "content-type": message.content_type}, message.body, AMQP)
        same(read, read.data, event)
    headers, body = to_binary(event, AMQP)
    properties = {"content-type": headers.pop("content-type")}
    read_by_sdk(amqp.from_amqp(amqp.AMQPMessage(properties, headers, body), FORMAT), event)


def test_the_sdk_invents_an_id_and_we_do_not() -> None:
    """Why the SDK is not used at run time. If this fails, its authors have changed that."""
    body = json.dumps({"specversion": "1.0", "source": "/s", "type": "t"}).encode()
    message = http.HTTPMessage({"content-type": "application/cloudevents+json"}, body)
    assert http.from_http(message, FORMAT).get_id()
    with pytest.raises(ValueError, match="has no id"):
        decode(message.headers, body)
