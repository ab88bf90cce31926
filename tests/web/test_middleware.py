"""The middleware, on every store: what is handled, what is stored, and what repetitions get."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Postroom, State, sync
from postroom.testing import FrozenClock
from postroom.web import ANONYMOUS, IdempotencyMiddleware, record_key
from postroom.web.asgi import Receive, Scope, Send
from tests.web.calls import Call, call, user_of

RECORD = record_key("ann", "POST", "/pay", "k-1")


class App:
    """Counts its calls. `status`, `headers`, `chunks`: its response. `inside` is awaited before that."""

    def __init__(self) -> None:
        self.calls = 0
        self.status = 201
        self.headers: list[tuple[bytes, bytes]] = [(b"content-type", b"text/plain")]
        self.chunks = [b"paid "]
        self.bodies: list[bytes] = []
        self.inside: Callable[[], Any] | None = None
        self.between: Callable[[], Any] | None = None
        self.after: Callable[[], Any] | None = None
        self.next_message: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        number = str(self.calls).encode()
        self.bodies.append((await receive()).get("body", b""))
        if self.inside is not None:
            await self.inside()
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        for chunk in self.chunks[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if self.between is not None:
                await self.between()
        await send({"type": "http.response.body", "body": self.chunks[-1] + number})
        if self.after is not None:
            await self.after()


@pytest.fixture
def app() -> App:
    return App()


def guarded(app: Any, room: Postroom, **options: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, guard=room.guard("http"), **{"principal": user_of, **options})


async def state(room: Postroom, record: str = RECORD) -> State:
    return (await room.guard("http").get(record)).state


# -- once --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("CEB-001", "KOAN-006")
async def test_a_repetition_gets_the_stored_response(room: Postroom, app: App) -> None:
    app.headers += [(b"x-order", b"7"), (b"date", b"now"), (b"set-cookie", b"a=1"), (b"connection", b"close, x-hop"),
                    (b"x-hop", b"1"), (b"transfer-encoding", b"chunked")]  # fmt: skip
    web = guarded(app, room)
    first, second, third = await call(web), await call(web, '"k-1"'), await call(web)
    assert (first.status, first.body, first.is_replayed) == (201, b"paid 1", False)
    assert first.header("set-cookie") == "a=1"
    for again in (second, third):
        assert (again.status, again.body) == (201, b"paid 1")
        assert again.headers == [
            ("content-type", "text/plain"), ("x-order", "7"), ("idempotency-replayed", "true"),
        ]  # fmt: skip
    assert app.calls == 1
    assert app.bodies == [b"{}"]
    assert await state(room) is State.DONE


@pytest.mark.req("KOAN-030")
@pytest.mark.parametrize("other", [{"user": "bob"}, {"path": "/refund"}, {"method": "PATCH"}, {"key": "k-2"}], ids=str)
async def test_each_caller_method_path_and_key_has_its_own_response(
    room: Postroom, app: App, other: dict[str, Any]
) -> None:
    web = guarded(app, room)
    assert (await call(web)).body == b"paid 1"
    assert (await call(web, **other)).body == b"paid 2"


@pytest.mark.req("C-23")
@pytest.mark.parametrize(
    "other", [{"body": b"{ }"}, {"query": "a=1"}, {"headers": [("content-type", "text/plain")]}], ids=str
)
async def test_a_key_with_other_content_is_refused(room: Postroom, app: App, other: dict[str, Any]) -> None:
    web = guarded(app, room)
    await call(web)
    refused = await call(web, **other)
    assert (refused.status, refused.problem, app.calls) == (422, "reused", 1)
    assert b"paid" not in refused.body


@pytest.mark.req("CEB-008", "CEB-049", "C-04")
async def test_fifty_requests_at_the_same_time_run_the_handler_once(room: Postroom, app: App) -> None:
    go = asyncio.Event()
    app.inside = go.wait
    web = guarded(app, room)
    tasks = [asyncio.create_task(call(web)) for _ in range(50)]
    busy = 0
    for done in asyncio.as_completed(tasks):
        reply = await done
        if reply.status == 409:
            assert (reply.problem, reply.header("retry-after")) == ("in-progress", "1")
            busy += 1
            if busy == 49:
                go.set()
        else:
            assert reply.body == b"paid 1"
    assert (app.calls, busy) == (1, 49)
    assert (await call(web)).is_replayed


async def test_a_repetition_may_wait(room: Postroom, app: App) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def inside() -> None:
        begun.set()
        await go.wait()

    app.inside = inside
    web = guarded(app, room, wait=timedelta(seconds=30))
    first = asyncio.create_task(call(web))
    await begun.wait()
    second = asyncio.create_task(call(web))
    go.set()
    assert [(await first).is_replayed, (await second).is_replayed] == [False, True]
    assert app.calls == 1


# -- which requests ----------------------------------------------------------------------------------------------------


async def test_requests_without_a_key_and_other_methods_pass(room: Postroom, app: App) -> None:
    web = guarded(app, room)
    assert [(await call(web, None)).body, (await call(web, None)).body] == [b"paid 1", b"paid 2"]
    assert [(await call(web, method="PUT")).body for _ in range(2)] == [b"paid 3", b"paid 4"]
    put = guarded(app, room, methods=["put"])
    assert [(await call(put, method="PUT")).body for _ in range(2)] == [b"paid 5", b"paid 5"]
    assert await room.guard("http").find(states=[State.CLAIMED]) == []


@pytest.mark.parametrize(
    ("options", "sent", "status", "problem"),
    [
        ({"required": True}, {"key": None}, 400, "missing"),
        ({}, {"key": ""}, 400, "malformed"),
        ({}, {"key": "a\x01"}, 400, "malformed"),
        ({}, {"headers": [("idempotency-key", "k-1")]}, 400, "malformed"),
        ({}, {"key": "x" * 256}, 400, "malformed"),
        ({}, {"user": None}, 401, "no-principal"),
        ({}, {"user": ""}, 401, "no-principal"),
        ({"max_body_size": 5}, {"body": b"123456"}, 413, "too-large"),
        ({"max_body_size": 5}, {"body": [b"123", b"456"]}, 413, "too-large"),
        ({"max_body_size": 5}, {"body": b"", "headers": [("content-length", "6")]}, 413, "too-large"),
    ],
)
async def test_requests_that_are_refused(
    room: Postroom, app: App, options: dict[str, Any], sent: dict[str, Any], status: int, problem: str
) -> None:
    reply = await call(guarded(app, room, **options), **sent)
    assert (reply.status, reply.problem) == (status, problem)
    assert app.calls == 0
    assert await room.guard("http").find() == []


async def test_a_slow_body_takes_no_key(room: Postroom, app: App) -> None:
    sent = Call()
    sent.received[0]["more_body"] = True
    reply = await sent.run(guarded(app, room, body_timeout=timedelta(milliseconds=20)))
    assert (reply.status, reply.problem, reply.header("connection")) == (408, "too-slow", "close")
    assert await room.guard("http").find() == []


async def test_a_client_that_goes_during_its_body_takes_no_key(room: Postroom, app: App) -> None:
    sent = Call()
    sent.received[0]["more_body"] = True
    sent.gone.set()
    await guarded(app, room)(sent.scope, sent.receive, sent.send)
    assert (sent.sent, app.calls) == ([], 0)
    assert await room.guard("http").find() == []


async def test_the_principal_may_be_awaited_or_absent(room: Postroom, app: App) -> None:
    async def user(scope: Any) -> str:
        return f"user {scope['caller']}"

    await call(guarded(app, room, principal=user))
    assert await state(room, record_key("user ann", "POST", "/pay", "k-1")) is State.DONE
    anonymous = guarded(app, room, principal=ANONYMOUS)
    assert (await call(anonymous, user=None)).body == b"paid 2"
    assert (await call(anonymous, user="bob")).body == b"paid 2"


async def test_a_path_may_be_long(room: Postroom, app: App) -> None:
    web = guarded(app, room)
    one, other = "/" + "x" * 400, "/" + "x" * 399 + "y"
    assert [(await call(web, path=path)).body for path in (one, other, one)] == [b"paid 1", b"paid 2", b"paid 1"]


async def test_other_kinds_of_scopes_pass(room: Postroom) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    sent = Call()
    for kind in ("lifespan", "websocket"):
        await guarded(app, room)({"type": kind}, sent.receive, sent.send)
    assert seen == ["lifespan", "websocket"]


# -- which responses ---------------------------------------------------------------------------------------------------


@pytest.mark.req("CEB-026")
@pytest.mark.parametrize("status", [400, 404, 408, 409, 422, 425, 429, 500, 503])
async def test_a_failure_is_not_replayed(room: Postroom, app: App, status: int) -> None:
    web = guarded(app, room)
    app.status = status
    assert [(await call(web)).body, (await call(web)).body] == [b"paid 1", b"paid 2"]
    app.status = 200
    assert [(await call(web)).body, (await call(web)).body] == [b"paid 3", b"paid 3"]


@pytest.mark.parametrize("status", [200, 204, 303, 404, 503])
async def test_statuses_that_are_kept(room: Postroom, app: App, status: int) -> None:
    web = guarded(app, room, keep_statuses={404, 503})
    app.status = status
    assert [(await call(web)).body, (await call(web)).body] == [b"paid 1", b"paid 1"]


@pytest.mark.req("CEB-026", "CEB-028")
@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError()], ids=["raises", "cancelled"])
async def test_an_error_releases_the_key(room: Postroom, app: App, error: BaseException) -> None:
    async def fail() -> None:
        raise error

    app.inside = fail
    with pytest.raises(type(error)):
        await call(guarded(app, room))
    assert await state(room) is State.WAITING
    app.inside = None
    assert (await call(guarded(app, room))).body == b"paid 2"


@pytest.mark.req("CEB-001")
async def test_the_outcome_is_stored_before_the_response_is_sent(room: Postroom, app: App) -> None:
    states: list[State] = []

    class Sent(Call):
        async def send(self, message: Any) -> None:
            states.append(await state(room))
            await super().send(message)

    await Sent().run(guarded(app, room))
    assert states == [State.DONE, State.DONE]


async def test_a_response_with_a_known_length_is_stored_though_it_comes_in_parts(room: Postroom, app: App) -> None:
    app.chunks, app.headers = [b"a", b"b", b"c"], [(b"content-length", b"4")]
    web = guarded(app, room)
    assert [(await call(web)).body, (await call(web)).body] == [b"abc1", b"abc1"]


@pytest.mark.req("CEB-001")
async def test_a_stream_is_passed_on_and_its_end_waits_for_the_outcome(room: Postroom, app: App) -> None:
    app.chunks = [b"a", b"b", b"c"]
    seen: list[tuple[bytes, State]] = []

    class Sent(Call):
        async def send(self, message: Any) -> None:
            seen.append((message.get("body", b"start"), await state(room)))
            await super().send(message)

    first = Sent()
    passed: list[int] = []

    async def between() -> None:
        passed.append(len(first.sent))

    app.between = between
    web = guarded(app, room)
    assert (await first.run(web)).body == b"abc1"
    assert passed == [2, 3]
    assert [each for _, each in seen] == [State.CLAIMED] * 3 + [State.DONE]
    again = await call(web)
    assert (again.status, again.problem, app.calls) == (409, "replay-unavailable", 1)


@pytest.mark.req("CEB-007")
@pytest.mark.parametrize("parts", [1, 3])
async def test_a_response_that_is_too_large_is_sent_and_never_run_again(room: Postroom, app: App, parts: int) -> None:
    guard = room.guard("small", max_result_size=100)
    app.chunks = [b"x" * 200] * parts
    app.headers = [(b"content-length", str(200 * parts + 1).encode())]
    web = IdempotencyMiddleware(app, guard=guard, principal=user_of)
    states: list[State] = []

    class Sent(Call):
        async def send(self, message: Any) -> None:
            states.append((await guard.get(RECORD)).state)
            await super().send(message)

    assert (await Sent().run(web)).body == b"x" * 200 * parts + b"1"
    assert states[-1] is State.DONE
    assert (await call(web)).problem == "replay-unavailable"
    assert app.calls == 1


async def test_the_app_is_not_offered_ways_around_the_record(room: Postroom) -> None:
    offered: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        offered.append(scope["extensions"])
        await App()(scope, receive, send)

    extensions = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {"a": 1}}
    await call(guarded(app, room), extensions=extensions)
    assert offered == [{"tls": {"a": 1}}]


async def test_background_work_runs_after_the_outcome_is_stored(room: Postroom, app: App) -> None:
    states: list[State] = []

    async def after() -> None:
        states.append(await state(room))
        raise RuntimeError("in the background")

    app.after = after
    with pytest.raises(RuntimeError):
        await call(guarded(app, room))
    assert states == [State.DONE]
    assert (await call(guarded(app, room))).is_replayed


# -- clients that go ---------------------------------------------------------------------------------------------------


async def test_the_app_gets_the_receive_of_the_server(room: Postroom, app: App) -> None:
    sent = Call()
    seen: list[str] = []

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)
        waiting = asyncio.ensure_future(receive())
        done, _ = await asyncio.wait([waiting], timeout=0.02)
        seen.append("disconnect" if done else "waits")
        sent.gone.set()
        seen.append((await waiting)["type"])

    await sent.run(guarded(wrapped, room))
    assert seen == ["waits", "http.disconnect"]


async def test_a_client_that_goes_while_the_handler_runs_finds_the_response_later(room: Postroom, app: App) -> None:
    sent = Call()

    async def inside() -> None:
        sent.gone.set()

    app.inside = inside
    web = guarded(app, room)
    await sent.run(web)
    assert (await call(web)).is_replayed


async def test_a_client_that_goes_during_a_stream_causes_no_second_run(room: Postroom, app: App) -> None:
    class Sent(Call):
        async def send(self, message: Any) -> None:
            if message.get("body") == b"b":
                raise OSError("the client has gone")
            await super().send(message)

    app.chunks = [b"a", b"b", b"c"]
    web = guarded(app, room)
    with pytest.raises(OSError, match="gone"):
        await Sent().run(web)
    assert (await call(web)).problem == "replay-unavailable"

    async def cut(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    other = guarded(cut, room)
    await other(Call("k-2").scope, sent_receive := Call("k-2").receive, Call("k-2").send)
    assert sent_receive is not None
    assert (await call(other, "k-2")).problem == "replay-unavailable"


async def test_an_app_without_a_response_releases_the_key(room: Postroom) -> None:
    async def nothing(scope: Scope, receive: Receive, send: Send) -> None: ...

    sent = Call()
    await guarded(nothing, room)(sent.scope, sent.receive, sent.send)
    assert sent.sent == []
    assert await state(room) is State.WAITING


# -- leases and stores that fail ---------------------------------------------------------------------------------------


@pytest.mark.req("C-26")
async def test_a_lost_lease_is_no_success(room: Postroom, app: App, clock: FrozenClock) -> None:
    web = guarded(app, room)
    replies: list[Any] = []

    async def paused() -> None:
        app.inside = None
        clock.advance(timedelta(minutes=5))
        replies.append(await call(web))

    app.inside = paused
    late = await call(web)
    assert (late.status, late.problem, late.header("retry-after")) == (409, "not-recorded", "1")
    assert [reply.body for reply in replies] == [b"paid 2"]
    assert (await call(web)).body == b"paid 2"


async def test_a_stream_with_a_lost_lease_is_broken_off(room: Postroom, app: App, clock: FrozenClock) -> None:
    web = guarded(app, room)

    async def paused() -> None:
        app.between = None
        clock.advance(timedelta(minutes=5))
        await call(web)

    app.chunks, app.between = [b"a", b"b"], paused
    sent = Call()
    with pytest.raises(RuntimeError, match="lease"):
        await sent.run(web)
    assert sent.sent[-1].get("more_body") is True


async def test_the_lease_is_renewed_while_the_request_runs(app: App) -> None:
    renewed = asyncio.Event()

    class Seen:
        verbs = frozenset({"renew"})

        def __call__(self, event: Any) -> None:
            if event.verb == "renew":
                renewed.set()

    async with Postroom("memory://", observers=[Seen()]) as room:
        guard = room.guard("http", lease_seconds=0.2, lease_renewal=0.2)
        app.inside = renewed.wait
        web = IdempotencyMiddleware(app, guard=guard, principal=user_of)
        assert (await asyncio.wait_for(call(web), 20)).body == b"paid 1"


class Broken:
    """Fails what a room's store does, from a verb on."""

    def __init__(self, room: Postroom, verb: str) -> None:
        self._store: Any = room.guard("http")._store
        self._verb = verb

    @contextlib.contextmanager
    def failing(self) -> Any:
        async def fail(*args: Any, **options: Any) -> Any:
            raise ConnectionError("secret-address")

        vars(self._store)[self._verb] = fail
        try:
            yield
        finally:
            del vars(self._store)[self._verb]


@pytest.mark.req("CEB-001")
async def test_without_its_store_the_handler_does_not_run(
    room: Postroom, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    web = guarded(app, room)
    with Broken(room, "begin").failing():
        reply = await call(web, "secret-key", body=b"secret-body")
    assert (reply.status, reply.problem, reply.header("retry-after")) == (503, "unavailable", "1")
    assert app.calls == 0
    assert (await call(web)).body == b"paid 1"
    assert "ConnectionError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_store_that_fails_at_the_end_makes_no_success(room: Postroom, app: App, clock: FrozenClock) -> None:
    web = guarded(app, room)
    with Broken(room, "settle").failing():
        reply = await call(web)
    assert (reply.status, reply.problem) == (503, "unavailable")
    assert (await call(web)).problem == "in-progress"
    clock.advance(timedelta(minutes=5))
    assert (await call(web)).body == b"paid 2"


@pytest.mark.req("C-59")
async def test_logs_have_no_key_no_content_and_no_caller(
    room: Postroom, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    web = guarded(app, room)

    async def fail() -> None:
        raise RuntimeError("the bank did not respond")

    for inside, status in ((None, 200), (None, 500), (fail, 200)):
        app.inside, app.status = inside, status
        for _ in range(2):
            sent: Any = {"user": "secret-user", "body": b"secret-body", "path": "/secret", "query": "secret"}
            with contextlib.suppress(RuntimeError):
                await call(web, f"secret-{status}", **sent)
    for value in ("secret", "paid"):
        assert value not in caplog.text


async def test_a_dead_record_is_not_run_again(room: Postroom, app: App) -> None:
    guard = room.guard("deadly", dead_on=(ZeroDivisionError,))
    web = IdempotencyMiddleware(app, guard=guard, principal=user_of)

    async def fail() -> None:
        raise ZeroDivisionError

    app.inside = fail
    with pytest.raises(ZeroDivisionError):
        await call(web)
    reply = await call(web)
    assert (reply.status, reply.problem, app.calls) == (409, "failed", 1)


async def test_a_disabled_guard_runs_every_request(app: App) -> None:
    async with Postroom("memory://") as room:
        web = IdempotencyMiddleware(app, guard=room.guard("off", enabled=False), principal=user_of)
        assert [(await call(web)).body, (await call(web)).body] == [b"paid 1", b"paid 2"]


# -- options -----------------------------------------------------------------------------------------------------------


async def test_bad_options_are_refused_at_once(app: App) -> None:
    room, plain = Postroom("memory://"), sync.Postroom("memory://")
    guard: Any = room.guard("http")
    good: dict[str, Any] = {"guard": guard, "principal": user_of}
    for kind, bad, text in (
        (ArgumentTypeError, {"guard": plain.guard("http")}, r"postroom\.sync"),
        (ArgumentTypeError, {"guard": "http"}, r"room\.guard"),
        (ArgumentValueError, {"guard": room.guard("m", mode="mark_before")}, 'mode="lease"'),
        (ArgumentTypeError, {"principal": None}, "ANONYMOUS"),
        (ArgumentTypeError, {"methods": "POST"}, "collection"),
        (ArgumentTypeError, {"required": 1}, "required"),
        (ArgumentTypeError, {"wait": 5}, "wait"),
        (ArgumentTypeError, {"keep_statuses": "404"}, "keep_statuses"),
        (ArgumentValueError, {"keep_statuses": [200]}, "400 to 599"),
        (ArgumentTypeError, {"max_body_size": "1"}, "max_body_size"),
        (ArgumentTypeError, {"body_timeout": 1}, "body_timeout"),
    ):
        with pytest.raises(kind, match=text):
            IdempotencyMiddleware(app, **{**good, **bad})
    with pytest.raises(TypeError, match="principal"):
        IdempotencyMiddleware(app, guard=guard)  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match="must return a str"):
        await call(IdempotencyMiddleware(app, guard=guard, principal=lambda _: 7))  # type: ignore[arg-type,return-value]
    await room.close()
    plain.close()
