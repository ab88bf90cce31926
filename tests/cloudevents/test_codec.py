"""The codec of CloudEvents: the examples of the specification, and what it refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.cloudevents import (
    AMQP,
    HTTP,
    KAFKA,
    NATS,
    Binding,
    CloudEvent,
    CloudEventError,
    decode,
    is_cloud_event,
    to_batch,
    to_binary,
    to_structured,
)

BINDINGS = [HTTP, AMQP, KAFKA, NATS]
TIME = datetime(2018, 4, 5, 17, 31, tzinfo=UTC)
STRUCTURED = {"content-type": "application/cloudevents+json; charset=UTF-8"}
REQUIRED = {"specversion": "1.0", "type": "com.example.someevent", "source": "/mycontext", "id": "A234-1234-1234"}
XML = {
    **REQUIRED,
    "source": "/mycontext/subcontext",
    "time": "2018-04-05T17:31:00Z",
    "comexampleextension1": "value",
    "comexampleothervalue": 5,
    "datacontenttype": "application/xml",
    "data": '<much wow="xml"/>',
}


def structured(**changes: Any) -> list[CloudEvent]:
    content = {name: value for name, value in {**REQUIRED, **changes}.items() if value is not ...}
    return decode(STRUCTURED, json.dumps(content).encode())


def test_the_example_with_xml_of_the_json_format() -> None:
    [event] = decode(STRUCTURED, json.dumps(XML).encode())
    assert (event.id, event.source, event.type) == ("A234-1234-1234", "/mycontext/subcontext", "com.example.someevent")
    assert (event.time, event.datacontenttype, event.data) == (TIME, "application/xml", '<much wow="xml"/>')
    assert event.extensions == {"comexampleextension1": "value", "comexampleothervalue": 5}
    assert json.loads(to_structured(event).body) == XML
    assert to_structured(event).headers == {"content-type": "application/cloudevents+json; charset=UTF-8"}


def test_the_example_with_binary_data_of_the_json_format() -> None:
    [event] = structured(datacontenttype="application/vnd.apache.thrift.binary", data_base64="AAEC/w==")
    assert event.data == b"\x00\x01\x02\xff"
    assert json.loads(to_structured(event).body)["data_base64"] == "AAEC/w=="
    assert to_binary(event).body == b"\x00\x01\x02\xff"


@pytest.mark.parametrize("data", [{"appinfoA": "abc", "appinfoB": 123, "appinfoC": True}, 1.5, "text", [1, None], True])
def test_json_data_are_values_in_every_mode(data: object) -> None:
    [event] = structured(datacontenttype="application/json", data=data)
    assert event.data == data
    for encoded in (to_structured(event), to_binary(event)):
        assert decode(*encoded) == [event]


def test_the_example_of_the_http_binding_in_binary_mode() -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-type": "com.example.someevent",
        "ce-time": "2018-04-05T03:56:24Z",
        "ce-id": "1234-1234-1234",
        "ce-source": "/mycontext/subcontext",
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": "17",
    }
    [event] = decode(headers, b'{"much":"wow"}')
    assert event.data == {"much": "wow"}
    assert event.extensions == {}
    assert event.time == datetime(2018, 4, 5, 3, 56, 24, tzinfo=UTC)
    sent = to_binary(event)
    assert {name.lower(): value for name, value in headers.items() if name != "Content-Length"} == sent.headers
    assert sent.body == b'{"much":"wow"}'


def test_the_example_of_the_http_binding_in_batched_mode() -> None:
    batch = json.dumps([XML, {**REQUIRED, "id": "B234", "data": {"appinfoA": "abc"}}]).encode()
    headers = {"Content-Type": "application/cloudevents-batch+json; charset=utf-8"}
    events = decode(headers, batch)
    assert [event.id for event in events] == ["A234-1234-1234", "B234"]
    assert json.loads(to_batch(events).body) == json.loads(batch)
    assert decode(*to_batch([])) == []


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("Euro € \U0001f600", "Euro%20%E2%82%AC%20%F0%9F%98%80"),  # of the specification
        ('100% "sure"', "100%25%20%22sure%22"),
        ("plain/~!#$&'()*+,-.:;<=>?@[]^_`{|}", "plain/~!#$&'()*+,-.:;<=>?@[]^_`{|}"),
    ],
)
@pytest.mark.parametrize("binding", [HTTP, NATS], ids=lambda binding: binding.name)
def test_values_of_headers_are_percent_encoded(text: str, header: str, binding: Binding) -> None:
    event = CloudEvent(id="1", source="/s", type="t", subject=text)
    assert to_binary(event, binding).headers["ce-subject"] == header
    assert decode(*to_binary(event, binding), binding) == [event]


def test_quoted_and_needlessly_encoded_headers_are_read() -> None:
    required = {f"ce-{name}": value for name, value in REQUIRED.items()}
    [event] = decode({**required, "ce-subject": r'"a \"b\" %41"', "ce-Other": "%C3%a9"}, b"")
    assert (event.subject, event.extensions) == ('a "b" A', {"other": "é"})


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents:", "cloudEvents_", "CLOUDEVENTS_"])
def test_amqp_has_three_prefixes(prefix: str) -> None:
    [event] = decode({f"{prefix}{name}": value for name, value in REQUIRED.items()}, b"\x01", AMQP)
    assert (event.id, event.data) == ("A234-1234-1234", b"\x01")


def test_amqp_has_native_values() -> None:
    headers = {f"cloudEvents_{name}": value for name, value in REQUIRED.items()}
    native = {
        "cloudEvents_time": 1522949460000,
        "cloudEvents_size": 7,
        "cloudEvents_ok": True,
        "cloudEvents_when": TIME,
    }
    [event] = decode({**headers, **native}, b"", AMQP)
    assert event.time == TIME
    assert event.extensions == {"size": 7, "ok": True, "when": TIME}


def test_kafka_headers_are_bytes() -> None:
    event = CloudEvent(id="ü", source="/s", type="t", extensions={"partitionkey": "p 1"}, data={"a": 1})
    encoded = to_binary(event, KAFKA)
    assert encoded.headers["ce_id"] == "ü"
    assert decode([(name, value.encode()) for name, value in encoded.headers.items()], encoded.body, KAFKA) == [
        CloudEvent(**{**vars_of(event), "datacontenttype": "application/json"})
    ]


def vars_of(event: CloudEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__slots__}


@pytest.mark.parametrize("missing", ["id", "source", "type", "specversion"])
@pytest.mark.parametrize("value", [..., None, ""])
def test_an_event_without_a_required_attribute_is_refused_in_every_mode(missing: str, value: object) -> None:
    with pytest.raises(CloudEventError, match=missing):
        structured(**{missing: value})
    rest = {name: text for name, text in REQUIRED.items() if name != missing}
    for binding in BINDINGS:
        headers = {f"{binding.prefix}{name}": text for name, text in rest.items()}
        with pytest.raises(CloudEventError, match=missing):
            decode(headers if value is ... else {**headers, f"{binding.prefix}{missing}": ""}, b"", binding)


def test_nothing_is_invented() -> None:
    [event] = structured()
    assert (event.time, event.subject, event.datacontenttype, event.data) == (None, None, None, None)
    assert json.loads(to_structured(event).body) == REQUIRED


@pytest.mark.parametrize(
    "changes",
    [
        {"specversion": "0.3"},
        {"specversion": 1.0},
        {"id": 5},
        {"id": "a\nb"},
        {"time": "yesterday"},
        {"time": "2018-04-05"},
        {"time": "2018-02-30T00:00:00Z"},
        {"time": "2018-04-05T17:31:00"},
        {"time": 5},
        {"Upper": "x"},
        {"my_ext": "x"},
        {"ext": 2**31},
        {"ext": 1.5},
        {"ext": {"a": 1}},
        {"ext": "\ud800"},
        {"datacontenttype": 5},
        {"data": 1, "data_base64": "AA=="},
        {"data_base64": "not base64"},
        {"data_base64": 5},
    ],
)
def test_what_the_specification_does_not_allow_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CloudEventError):
        structured(**changes)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({"content-type": "application/json"}, b"{}"),
        ({"content-type": "application/cloudevents+xml"}, b"<event/>"),
        (STRUCTURED, b"{"),
        (STRUCTURED, b"\xff"),
        (STRUCTURED, b"[]"),
        (STRUCTURED, b"[" * 100_000),
        (STRUCTURED, b'{"a": NaN}'),
        ({"content-type": "application/cloudevents-batch+json"}, b"{}"),
        ({"content-type": "application/cloudevents-batch+json"}, b"[1]"),
        ({f"ce-{name}": value for name, value in REQUIRED.items()} | {"content-type": "text/json"}, b"{"),
        ([*((f"ce-{name}", value) for name, value in REQUIRED.items()), ("CE-ID", "2")], b""),
        ({f"ce-{name}": value for name, value in REQUIRED.items()} | {"ce-subject": "%ff"}, b""),
        ({f"ce-{name}": value for name, value in REQUIRED.items()} | {"ce-subject": "é"}, b""),
        ({f"ce-{name}": value for name, value in REQUIRED.items()} | {"ce-subject": b"\xff"}, b""),
        ({f"ce-{name}": value for name, value in REQUIRED.items()} | {"ce-data": "x"}, b""),
    ],
)
def test_what_is_no_event_is_refused(headers: Any, body: bytes) -> None:
    with pytest.raises(CloudEventError):
        decode(headers, body)


def test_is_cloud_event() -> None:
    assert is_cloud_event({"Content-Type": "application/cloudevents-batch+json"})
    assert is_cloud_event([(b"CE-SpecVersion", b"0.3")])
    assert is_cloud_event({"cloudEvents:specversion": "1.0"}, AMQP)
    assert not is_cloud_event({"content-type": "application/json", "ce-id": "1"})


def test_a_leap_second_and_nanoseconds_are_read() -> None:
    [event] = structured(time="2016-12-31T23:59:60.123456789Z")
    assert event.time == datetime(2016, 12, 31, 23, 59, 59, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    "values",
    [
        {"id": ""},
        {"id": None},
        {"time": datetime(2020, 1, 1)},  # noqa: DTZ001
        {"time": "2020"},
        {"extensions": {"data": "x"}},
        {"extensions": {"a": None}},
        {"extensions": {"a": 2**40}},
    ],
)
def test_a_bad_event_cannot_be_made(values: dict[str, Any]) -> None:
    with pytest.raises(CloudEventError):
        CloudEvent(**{"id": "1", "source": "/s", "type": "t", **values})


@pytest.mark.parametrize("data", [{1, 2}, float("nan"), object()])
def test_data_without_a_json_form_are_refused(data: object) -> None:
    event = CloudEvent(id="1", source="/s", type="t", data=data)
    for encode in (to_structured, to_binary):
        with pytest.raises(CloudEventError):
            encode(event)
    with pytest.raises(CloudEventError):
        to_binary(CloudEvent(id="1", source="/s", type="t", datacontenttype="text/xml", data={"a": 1}))
    with pytest.raises(CloudEventError):
        to_structured(CloudEvent(id="1", source="/s", type="t", datacontenttype="text/xml", data={"a": 1}))


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
).filter(lambda value: not _has_surrogate(value))


def _has_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


events = st.builds(
    CloudEvent,
    id=texts,
    source=texts,
    type=texts,
    subject=st.none() | texts,
    time=st.none() | st.datetimes(timezones=st.just(UTC)),
    datacontenttype=st.just("application/json"),
    dataschema=st.none() | texts,
    extensions=st.dictionaries(st.from_regex(r"ext[a-z0-9]{1,5}", fullmatch=True), texts, max_size=3),
    data=json_values,
)


@given(events, st.sampled_from(BINDINGS))
def test_every_event_survives_every_mode_and_transport(event: CloudEvent, binding: Binding) -> None:
    assert decode(*to_structured(event), binding) == [event]
    assert decode(*to_batch([event, event]), binding) == [event, event]
    assert decode(*to_binary(event, binding), binding) == [event]


@given(
    st.dictionaries(
        st.sampled_from(["content-type", "ce-id", "ce-source", "ce-type", "ce-specversion", "ce-time", "ce-x"]),
        st.text() | st.binary() | st.sampled_from(["1.0", "application/cloudevents+json", '"', "%"]),
    ),
    st.binary(),
    st.sampled_from(BINDINGS),
)
def test_any_headers_and_body_are_decoded_or_refused(headers: dict[str, Any], body: bytes, binding: Binding) -> None:
    try:
        decode(headers, body, binding)
        is_cloud_event(headers, binding)
    except CloudEventError:
        pass
