"""The sender: what it sends, when it sends again, and when it stops. Against real HTTP servers on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import Message, Outcome, Postroom, State
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.testing import FrozenClock
from postroom.webhooks import Endpoint, MemoryEndpoints, Sender, StandardWebhooks, to_endpoint
from postroom.webhooks.schedule import SCHEDULE, InFlight, next_delay, parse_retry_after
from postroom.webhooks.sender import RECHECK
from tests.support import open_room
from tests.webhooks.endpoint_server import endpoint_server
from tests.webhooks.signing import OTHER, SECRET

LOOPBACK = ["127.0.0.0/8"]
EVENT = {"type": "user.created", "data": {"name": "Zoë"}}


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory", "aiosqlite", "asyncpg", "redis"])
async def room(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> AsyncIterator[Postroom]:
    room: Postroom = await open_room(request.param, tmp_path, clock)
    yield room
    await room.close()


@pytest.fixture
async def make_sender(clock: FrozenClock) -> AsyncIterator[Callable[..., Sender]]:
    made: list[Sender] = []

    def make(endpoints: Any, **options: Any) -> Sender:
        made.append(Sender(endpoints, clock=lambda: clock.now().timestamp(), **{"allow": LOOPBACK, **options}))
        return made[-1]

    yield make
    for sender in made:
        await sender.close()


def a_message(endpoint: str = "acme", attempt: int = 0, **changes: Any) -> Message:
    now = datetime.now(UTC)
    values: dict[str, Any] = dict.fromkeys(Message._fields)
    values.update(
        id=1,
        source=endpoint,
        message_id="msg_1",
        topic="webhook",
        payload=EVENT,
        format="json",
        headers={},
        first_seen=now,
        last_seen=now,
        revision=0,
        state=State.CLAIMED,
        attempt=attempt,
        deliveries=1,
        lost_leases=0,
    )
    return Message(**{**values, **changes})


async def test_a_webhook_is_signed_and_sent_again_under_the_same_id_with_a_new_time(
    room: Postroom, clock: FrozenClock, make_sender: Callable[..., Sender]
) -> None:
    outbox = room.outbox("webhooks")
    async with endpoint_server("500 Oops", "302 Found\r\nLocation: http://127.0.0.1:1/", "200 OK") as server:
        endpoints = MemoryEndpoints({"acme": Endpoint(server.url, [SECRET, OTHER])})
        outbox.handler("webhook")(make_sender(endpoints))
        new = to_endpoint("acme", EVENT, message_id="msg_1")
        for _ in range(2):  # the second is a duplicate
            await outbox.enqueue_many([new])
        for wait in (timedelta(), SCHEDULE[0] * 1.21, SCHEDULE[1] * 1.21):
            clock.advance(wait)
            await room.drain()
    assert len(server.requests) == 3
    times = [int(request.headers["webhook-timestamp"]) for request in server.requests]
    assert times == sorted(set(times))
    for request, time in zip(server.requests, times, strict=True):
        assert request.line == "POST /hook?x=1 HTTP/1.1"
        assert request.headers["host"] == f"127.0.0.1:{server.port}"
        assert request.headers["content-type"] == "application/json"
        for secret in (SECRET, OTHER):
            [delivery] = StandardWebhooks(secret).verify(request.headers, request.body, now=time)
            assert (delivery.id, delivery.topic, delivery.payload) == ("msg_1", "user.created", EVENT)
    [message] = await outbox.find()
    assert (message.state, message.attempt) == (State.DONE, 2)


async def test_the_tenth_failure_makes_a_dead_letter(
    room: Postroom, clock: FrozenClock, make_sender: Callable[..., Sender]
) -> None:
    outbox = room.outbox("webhooks")
    async with endpoint_server("500 Oops") as server:
        outbox.handler("webhook")(make_sender(MemoryEndpoints({"acme": Endpoint(server.url, SECRET)})))
        await outbox.enqueue_many([to_endpoint("acme", EVENT)])
        for slot in (timedelta(), *SCHEDULE):
            clock.advance(slot * 1.21)
            await room.drain()
        assert len(server.requests) == 10
    [letter] = await outbox.dead_letters()
    assert letter.last_error == "HTTP 500"


async def test_410_disables_and_what_waits_is_sent_when_it_is_enabled(
    room: Postroom, clock: FrozenClock, make_sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    outbox = room.outbox("webhooks")
    told: list[tuple[str, str]] = []
    async with endpoint_server("410 Gone", "200 OK") as server:
        endpoint = Endpoint(server.url, SECRET)
        endpoints = MemoryEndpoints({"acme": endpoint})
        sender = make_sender(endpoints, on_disabled=lambda name, reason: told.append((name, reason)))
        outbox.handler("webhook")(sender)
        await outbox.enqueue_many([to_endpoint("acme", EVENT, message_id=str(number)) for number in range(3)])
        await room.drain()
        assert (len(server.requests), told) == (1, [("acme", "410 Gone")])
        assert "endpoint acme is disabled: 410 Gone" in caplog.text
        clock.advance(RECHECK * 2)
        await room.drain()
        assert len(server.requests) == 1
        assert {(message.state, message.attempt) for message in await outbox.find()} == {(State.WAITING, 0)}
        endpoints.put("acme", endpoint)
        clock.advance(RECHECK * 2)
        await room.drain()
    assert {message.state for message in await outbox.find()} == {State.DONE}
    assert len(server.requests) == 4


@pytest.mark.parametrize("hours", [119, 120])
async def test_an_endpoint_without_one_success_for_120_hours_is_disabled(
    clock: FrozenClock, make_sender: Callable[..., Sender], hours: int
) -> None:
    told: list[str] = []

    async def tell(name: str, _reason: str) -> None:
        told.append(name)

    async with endpoint_server("200 OK", "500 Oops") as server:
        endpoints = MemoryEndpoints({"acme": Endpoint(server.url, SECRET)})
        sender = make_sender(endpoints, on_disabled=tell)
        assert await sender.handle(a_message()) is Outcome.SUCCESS
        clock.advance(timedelta(hours=500))  # the time without requests does not count
        assert (await sender.handle(a_message())).result == "failed"
        clock.advance(timedelta(hours=hours))
        outcome = await sender.handle(a_message())
    assert outcome.result == ("retry" if hours == 120 else "failed")
    assert told == (["acme"] if hours == 120 else [])
    found = await endpoints.find("acme")
    assert found is not None
    assert (found.disabled is not None) == (hours == 120)


async def test_a_success_begins_the_120_hours_anew(clock: FrozenClock, make_sender: Callable[..., Sender]) -> None:
    async with endpoint_server("500 Oops", "200 OK", "500 Oops") as server:
        sender = make_sender(MemoryEndpoints({"acme": Endpoint(server.url, SECRET)}))
        await sender.handle(a_message())
        clock.advance(timedelta(hours=200))
        assert await sender.handle(a_message()) is Outcome.SUCCESS
        assert (await sender.handle(a_message())).result == "failed"


@pytest.mark.parametrize(
    ("response", "attempt", "least", "most"),
    [
        ("500 Oops", 0, 4, 6),
        ("500 Oops", 8, 24 * 3600 * 0.8, 24 * 3600 * 1.2),
        ("500 Oops\r\nRetry-After: 8", 0, 4, 6),  # not for this status
        ("429 Slow\r\nRetry-After: 8", 0, 8, 8),
        ("429 Slow\r\nRetry-After: 1", 0, 5, 5),
        ("503 Busy\r\nRetry-After: 100000", 0, 10, 10),
        ("502 Bad\r\nRetry-After: nonsense", 0, 4, 6),
        ("504 Late\r\nRetry-After: Wed, 21 Oct 2065 07:28:00 GMT", 1, 600, 600),
    ],
)
async def test_the_delay_is_the_slot_or_what_the_endpoint_asks_for(
    make_sender: Callable[..., Sender], response: str, attempt: int, least: float, most: float
) -> None:
    async with endpoint_server(response) as server:
        sender = make_sender(MemoryEndpoints({"acme": Endpoint(server.url, SECRET)}))
        outcome = await sender.handle(a_message(attempt=attempt))
    assert outcome.result == "failed"
    assert outcome.delay is not None
    assert least <= outcome.delay.total_seconds() <= most


def test_the_schedule_has_its_published_slots() -> None:
    hours = [slot / timedelta(hours=1) for slot in SCHEDULE]
    assert hours == [5 / 3600, 5 / 60, 0.5, 2, 5, 10, 14, 20, 24]
    assert next_delay(0, SCHEDULE, None, -1) == timedelta(seconds=4)
    assert next_delay(99, SCHEDULE, None, 1) == timedelta(hours=28.8)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x" * 100, "Wed, 99 Oct 2065", "\xff", "99999999999999"])
def test_a_retry_after_that_cannot_be_read_is_ignored(text: str) -> None:
    assert parse_retry_after(text, datetime.now(UTC)) is None


async def test_no_endpoint_delays_others(make_sender: Callable[..., Sender], tmp_path: Path) -> None:
    """A worker of four handlers; one endpoint does not respond, and has ten messages in front of the others."""
    room = Postroom(f"sqlite:///{tmp_path}/room.db")
    await room.migrate()
    outbox = room.outbox("webhooks", concurrency=4)
    async with endpoint_server() as slow, endpoint_server() as fast:
        slow.gate.clear()
        endpoints = MemoryEndpoints({"slow": Endpoint(slow.url, SECRET), "fast": Endpoint(fast.url, SECRET)})
        outbox.handler("webhook")(make_sender(endpoints, max_in_flight=2))
        names = ["slow"] * 10 + ["fast"] * 5
        await outbox.enqueue_many([to_endpoint(name, EVENT, message_id=str(i)) for i, name in enumerate(names)])
        async with room, asyncio.timeout(20):
            while len(fast.requests) < 5:
                await fast.arrived.wait()
                fast.arrived.clear()
            assert (slow.running, slow.most_running) == (2, 2)
            assert {message.attempt for message in await outbox.find()} == {0}
            slow.gate.set()


def test_messages_without_a_slot_wait_longer_the_more_there_are() -> None:
    slots = InFlight(2)
    assert [slots.enter("a"), slots.enter("a"), slots.enter("a"), slots.enter("b")] == [True, True, False, True]
    delays = [slots.defer("a").total_seconds() for _ in range(500)]
    assert 0.8 <= delays[0] <= 2
    assert 45 <= delays[-1] <= 72
    slots.leave("a")
    assert slots.enter("a")
    slots.leave("a")
    slots.leave("a")
    assert slots.defer("a").total_seconds() <= 2


async def test_an_endpoint_that_does_not_respond_is_a_failure(make_sender: Callable[..., Sender]) -> None:
    async with endpoint_server() as server:
        server.gate.clear()
        sender = make_sender(MemoryEndpoints({"acme": Endpoint(server.url, SECRET)}), timeout=timedelta(seconds=0.05))
        outcome = await sender.handle(a_message())
    assert (outcome.result, outcome.reason) == ("failed", "no response within 0.05 seconds")
    refused = make_sender(MemoryEndpoints({"acme": Endpoint("http://127.0.0.1:1/", SECRET)}))
    assert (await refused.handle(a_message())).reason == "the request failed: ConnectError"


async def test_an_unknown_endpoint_and_a_bad_id_make_dead_letters(make_sender: Callable[..., Sender]) -> None:
    sender = make_sender(MemoryEndpoints({"acme": Endpoint("http://127.0.0.1:1/", SECRET)}))
    assert (await sender.handle(a_message("other"))).result == "dead"
    assert (await sender.handle(a_message(message_id="a\nb"))).result == "dead"


class Broken(MemoryEndpoints):
    """Endpoints whose database is down for some methods."""

    def __init__(self, *methods: str, **endpoints: Endpoint) -> None:
        super().__init__(endpoints)
        for method in methods:
            setattr(self, method, self._fail)

    async def _fail(self, *_args: object) -> Any:
        raise ConnectionError("secret of the database")


async def test_if_the_application_fails_no_attempt_is_counted(
    make_sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    async with endpoint_server("200 OK", "500 Oops", "410 Gone") as server:
        endpoint = Endpoint(server.url, SECRET)
        assert (await make_sender(Broken("find")).handle(a_message())).result == "retry"
        sender = make_sender(Broken("succeeded", "failed", "disable", acme=endpoint))
        assert [(await sender.handle(a_message())).result for _ in range(3)] == ["success", "failed", "retry"]
        failing = make_sender(MemoryEndpoints({"acme": endpoint}), on_disabled=Broken()._fail)
        assert (await failing.handle(a_message())).result == "retry"
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("payload", "body"), [("text ä", "text ä".encode()), (b"\x00", b"\x00"), ({"a": "ä"}, '{"a":"ä"}'.encode())]
)
async def test_the_body_is_the_payload(make_sender: Callable[..., Sender], payload: object, body: bytes) -> None:
    async with endpoint_server() as server:
        sender = make_sender(MemoryEndpoints({"acme": Endpoint(server.url, SECRET)}))
        await sender.handle(a_message(payload=payload, headers={"content-type": "application/cloudevents+json"}))
    [request] = server.requests
    assert (request.body, request.headers["content-type"]) == (body, "application/cloudevents+json")


async def test_one_event_goes_to_several_endpoints_under_one_id(
    room: Postroom, make_sender: Callable[..., Sender]
) -> None:
    outbox = room.outbox("webhooks")
    async with endpoint_server() as server:
        names = ["a", "b", "c"]
        outbox.handler("webhook")(make_sender(MemoryEndpoints({name: Endpoint(server.url, SECRET) for name in names})))
        await outbox.enqueue_many([to_endpoint(name, EVENT, message_id="msg_1") for name in names])
        await room.drain()
    assert [request.headers["webhook-id"] for request in server.requests] == ["msg_1"] * 3
    assert [json.loads(request.body) for request in server.requests] == [EVENT] * 3


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "https://",
        "https://user@host/",
        "https://a:b@host/",
        "https://hö.example/",
        "https://h/a b",
        "https://h:x/",
        "https://h:0/",
        "//host",
        "https://h/\n",
        "",
    ],
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ArgumentValueError):
        Endpoint(url, SECRET)


def test_bad_arguments_are_refused() -> None:
    wrong: Any = None
    with pytest.raises(ArgumentTypeError):
        Endpoint("https://host/", wrong)
    with pytest.raises(ArgumentTypeError):
        Endpoint(wrong, SECRET)
    with pytest.raises(ArgumentValueError):
        Endpoint("https://host/", "whsec_!")
    with pytest.raises(ArgumentValueError):
        to_endpoint("acme", {}, message_id="a b")
    with pytest.raises(ArgumentValueError):
        to_endpoint("", {})
    bad: Any
    for bad in ({"schedule": []}, {"max_in_flight": 0}, {"timeout": timedelta(0)}):
        with pytest.raises(ArgumentValueError):
            Sender(MemoryEndpoints(), **bad)
    with pytest.raises(ArgumentTypeError):
        Sender(MemoryEndpoints(), allow="127.0.0.0/8")
    assert SECRET not in repr(Endpoint("https://host/", SECRET))
