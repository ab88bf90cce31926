"""The header, the key of a record, and the fingerprint."""

from __future__ import annotations

import asyncio
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import Postroom
from postroom.web import ANONYMOUS, IdempotencyMiddleware, record_key
from postroom.web.keys import fingerprint, key_in
from postroom.web.problems import Refused
from tests.web.calls import Call


def parsed(*values: bytes) -> str | None:
    return key_in([(b"content-type", b"text/plain"), *((b"Idempotency-Key", value) for value in values)])


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b'"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b' \t"a b, c" ', "a b, c"),
        (rb'"a \"b\" \\"', 'a "b" \\'),
        (b"a=1;b", "a=1;b"),
        (b"x" * 255, "x" * 255),
        (b'"' + b"\\\\" * 255 + b'"', "\\" * 255),
    ],
)
def test_quoted_and_bare_keys(value: bytes, key: str) -> None:
    assert parsed(value) == key


@pytest.mark.parametrize(
    "value",
    [b"", b"  ", b'""', b'"', b'"a', b'a"', b'"a"b', b'"a";x=1', b"a, b", b'"a", "b"', b"a b", b"a\tb", b"a\x00b",
     b'"a\x1fb"', b"\x7f", b'"\\n"', "é".encode(), "é".encode("latin-1"), b"x" * 256, b'"' + b"x" * 256 + b'"'],
)  # fmt: skip
def test_what_is_no_key(value: bytes) -> None:
    with pytest.raises(Refused) as caught:
        parsed(value)
    assert caught.value.problem.status == 400


def test_the_header_may_occur_once() -> None:
    assert parsed() is None
    with pytest.raises(Refused, match="once"):
        parsed(b"a", b"a")


@given(st.binary(max_size=300))
def test_a_key_is_printable_text_or_refused(value: bytes) -> None:
    try:
        key = parsed(value)
    except Refused:
        return
    assert key
    assert key.isascii()
    assert key.isprintable()
    assert len(key) <= 255


@given(st.lists(st.binary(max_size=300), max_size=2), st.text(max_size=80), st.binary(max_size=20))
def test_no_request_is_an_internal_error(values: list[bytes], path: str, query: bytes) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[operator]

    async def main() -> None:
        async with Postroom("memory://") as room:
            guarded = IdempotencyMiddleware(app, guard=room.guard("http"), principal=ANONYMOUS, required=True)
            sent = Call(None, path=f"/{path.encode(errors='replace').decode()}")
            sent.scope["headers"] += [(b"idempotency-key", value) for value in values]
            sent.scope["query_string"] = query
            assert (await sent.run(guarded)).status in {200, 400}

    asyncio.run(main())


PART = st.text(st.sampled_from("a:%/é\x00 @"), min_size=1, max_size=90)


@given(*[st.tuples(st.one_of(st.just(ANONYMOUS), PART), PART, PART, PART)] * 2)
def test_different_requests_have_different_records(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    texts = [record_key(*one), record_key(*other)]
    assert (texts[0] == texts[1]) == (one == other)
    assert all(len(text) <= 255 and text.isascii() and "\x00" not in text for text in texts)


@pytest.mark.req("KOAN-030")
def test_no_part_of_a_record_key_may_be_left_out() -> None:
    keys = {
        record_key("ann", "POST", "/pay", "1"),
        record_key("bob", "POST", "/pay", "1"),
        record_key("ann", "PATCH", "/pay", "1"),
        record_key("ann", "POST", "/pay/2", "1"),
        record_key("ann", "POST", "/pay", "2"),
        record_key("a", "POST", "/" + "x" * 300, "1"),
        record_key("b", "POST", "/" + "x" * 300, "1"),
        record_key(ANONYMOUS, "POST", "/pay", "1"),
    }
    assert len(keys) == 8


def test_a_fingerprint_has_content_type_query_and_body() -> None:
    json, text = [(b"content-type", b"application/json")], [(b"content-type", b"text/plain")]
    prints = [
        fingerprint(json, b"", b"{}"),
        fingerprint(text, b"", b"{}"),
        fingerprint(json, b"a=1", b"{}"),
        fingerprint(json, b"", b"a=1{}"),
        fingerprint(json, b"", b"{ }"),
        fingerprint([], b"application/json", b"{}"),
    ]
    assert all(one != other for one, other in combinations(prints, 2))
    assert fingerprint([(b"Content-Type", b"application/json"), (b"x", b"1")], b"", b"{}") == prints[0]
