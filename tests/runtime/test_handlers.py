"""Which handler gets which message, in which shape, and what its results mean."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import enum
import functools
import inspect
import logging
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Protocol, TypeVar

import aiosqlite
import msgspec
import psycopg
import pydantic
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from postroom import Message, Outcome, Postroom, State, topic
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, HandlerExists
from postroom.testing import Events, FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, Gate, Gauge, Logged, always, ids, put, soon, state_of, states

if TYPE_CHECKING:
    from decimal import Decimal

SECRET = "4111-1111"


@dataclass
class Order:
    number: int
    customer: str = ""


class Payment(msgspec.Struct):
    amount: int


class Mode(enum.Enum):
    RED = "red"


class Paint(msgspec.Struct):
    mode: Mode


class Sealed(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Person(pydantic.BaseModel):
    name: str
    age: int
    kind: Literal["a", "b"] = "a"
    cards: dict[str, int] = {}


@dataclass
class Picky:
    value: str

    def __post_init__(self) -> None:
        raise KeyError(self.value)


@topic("order.v1")
@dataclass
class Named:
    number: int


def boxes(room: Postroom) -> list[Any]:
    return [room.inbox(), room.outbox()]


class Shaped(Protocol):
    order: int


class TestDispatch:
    @pytest.mark.req("IBX-073", "OBX-048", "IBX-API-23", "OBX-API-11", "RHI-103", "RHI-014")
    async def test_the_handler_of_exactly_the_topic(self, still: Postroom) -> None:
        for box in boxes(still):
            calls: list[tuple[str, str]] = []
            for name in ("order.placed", "Order.placed", "order"):
                box.handler(name)(lambda message, name=name, calls=calls: calls.append((name, message.topic)))

            for name in ("Order.placed", "order.placed", "order"):
                await put(box, name, topic=name)
            assert await still.drain() == 3
            assert sorted(calls) == [(n, n) for n in ("Order.placed", "order", "order.placed")]
            assert set((await states(box)).values()) == {State.DONE}

    @pytest.mark.req("IBX-076", "OBX-051", "RHI-107")
    async def test_the_whole_message(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox()
        got: list[Message[Any]] = []
        box.handler("t")(got.append)
        due = clock.now() - timedelta(1)
        await box.enqueue(
            "t",
            {"a": [1, None]},
            source="s",
            message_id="1",
            correlation_id="c",
            group="g",
            headers={"h": "v"},
            due=due,
            expires=clock.now() + timedelta(1),
            received_at=due,
            hash=b"1",
        )
        await still.drain()
        [message] = got
        assert message.payload == {"a": [1, None]}
        assert (message.source, message.message_id, message.topic, message.correlation_id) == ("s", "1", "t", "c")
        assert (message.group, message.headers, message.due, message.received_at) == ("g", {"h": "v"}, due, due)
        assert (message.expires, message.hash) == (clock.now() + timedelta(1), b"1")
        assert (message.first_seen, message.attempt, message.deliveries) == (clock.now(), 0, 1)
        # It was captured before the handler was called.
        assert message.state is State.CLAIMED
        assert message.claim is not None
        assert message.claim.until == clock.now() + timedelta(seconds=30)
        assert not message.lease_lost

    @pytest.mark.parametrize(
        ("payload", "wanted"),
        [
            (Order(3, "x"), Order(3, "x")),
            (Payment(7), Payment(7)),
            (Person(name="n", age=4), Person(name="n", age=4)),
            (Named(1), Named(1)),
        ],
    )
    @pytest.mark.req("RHI-013", "RHI-107", "C-11")
    async def test_by_type(self, still: Postroom, payload: Any, wanted: Any) -> None:
        box = still.inbox()
        got: list[Any] = []

        @box.handler(type(payload))
        async def handle(message: Any) -> None:
            got.append(message.payload)

        await box.enqueue(payload, source="s", message_id="1")
        await still.drain()
        assert got == [wanted]

    @pytest.mark.req("RHI-013", "RHI-107")
    async def test_by_annotation(self, still: Postroom) -> None:
        box = still.inbox()
        got: list[Any] = []

        @box.handler("one")
        async def one(message: Message[Order]) -> None:
            got.append(message.payload)

        @box.handler("many", batch=10)
        async def many(messages: list[Message[Payment]]) -> None:
            got.extend(message.payload for message in messages)

        @box.handler("sequence", batch=10)
        async def sequence(messages: Sequence[Message[Payment]]) -> None:
            got.extend(message.payload for message in messages)

        @box.handler("thread")
        def thread(message: Message[Person]) -> None:
            got.append(message.payload)

        @box.handler("plain")
        async def plain(message: Message[Any]) -> None:
            got.append(message.payload)

        @box.handler("dict")
        async def generic(message: Message[dict[str, int]]) -> None:
            got.append(message.payload)

        cases: dict[str, Any] = {
            "one": Order(1),
            "many": Payment(2),
            "sequence": Payment(5),
            "thread": Person(name="n", age=3),
            "plain": {"x": 4},
            "dict": {"y": 1},
        }
        for name, payload in cases.items():
            await box.enqueue(name, payload, source="s", message_id=name)
        await still.drain()
        assert sorted(map(repr, got)) == sorted(map(repr, cases.values()))

    async def test_an_annotation_for_type_checkers_does_not_hide_the_payload(
        self, open_room: OpenRoom, store: str
    ) -> None:
        room = await open_room()
        got: list[Any] = []

        async def handle(message: Message[Order], extra: Decimal | None = None) -> None:
            got.append(message.payload)

        room.inbox().handler("t")(handle)
        await put(room.inbox(), 1, payload=Order(1))
        await room.drain()
        assert got == [Order(1)]

    @pytest.mark.req("RHI-109", "IBX-API-23", "OBX-API-11")
    async def test_objects_closures_and_partials(self, still: Postroom) -> None:
        box = still.outbox()
        got: list[Any] = []

        class Handling:
            def __init__(self, sink: list[Any]) -> None:
                self.sink = sink

            async def handle(self, message: Message[Order]) -> None:
                self.sink.append(("handle", message.payload))

        class Calling:
            async def __call__(self, message: Message[Order]) -> None:
                got.append(("call", message.payload))

        class Plain:
            def handle(self, message: Message[Order]) -> None:
                got.append(("plain", message.payload))

        async def with_first(sink: list[Any], message: Message[Order]) -> None:
            sink.append(("partial", message.payload))

        async def inner(message: Message[Order]) -> None:
            got.append(("wrapped", message.payload))

        @functools.wraps(inner)
        def wrapper(message: Message[Order]) -> Any:
            return inner(message)

        handlers: dict[str, Any] = {
            "handle": Handling(got),
            "call": Calling(),
            "plain": Plain(),
            "partial": functools.partial(with_first, got),
            "wrapped": wrapper,
        }
        for number, (name, handler) in enumerate(handlers.items()):
            box.handler(name)(handler)
            await put(box, name, topic=name, payload=Order(number))
        await still.drain()
        assert sorted(got, key=lambda pair: pair[1].number) == [(n, Order(i)) for i, n in enumerate(handlers)]
        assert set((await states(box)).values()) == {State.DONE}

    async def test_plain_functions_run_in_threads_with_the_context(self, still: Postroom) -> None:
        box = still.inbox()
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
        variable.set("seen")
        got: list[Any] = []

        @box.handler("t")
        def handle(message: Message[str]) -> None:
            got.append((threading.current_thread() is threading.main_thread(), variable.get()))

        await put(box, 1)
        await still.drain()
        assert got == [(False, "seen")]

    async def test_text_and_bytes_arrive_as_they_are(self, still: Postroom) -> None:
        box = still.inbox()
        got: list[Any] = []

        @box.handler("bytes")
        async def as_bytes(message: Message[bytes]) -> None:
            got.append(message.payload)

        @box.handler("text")
        async def as_text(message: Message[str]) -> None:
            got.append(message.payload)

        await put(box, 1, topic="bytes", payload=b"\xff")
        await put(box, 2, topic="text", payload="{not json")
        await still.drain()
        assert sorted(map(repr, got)) == sorted([repr(b"\xff"), repr("{not json")])


class TestRegistration:
    @pytest.mark.req("C-11")
    async def test_one_handler_per_topic_and_box(self, room: Postroom) -> None:
        async def handle(message: Any) -> None: ...

        box = room.inbox()
        box.handler("t")(handle)
        box.handler(Named)(handle)
        for again in ("t", "order.v1"):
            with pytest.raises(HandlerExists, match=again):
                box.handler(again)(handle)
        room.outbox().handler("t")(handle)
        room.inbox("other").handler("t")(handle)

    @pytest.mark.req("IBX-API-24")
    @pytest.mark.parametrize("name", ["", "x" * 256, None, 3])
    async def test_bad_topics(self, room: Postroom, name: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            room.inbox().handler(name)(always())

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"batch": 0}, ArgumentValueError),
            ({"batch": "2"}, ArgumentTypeError),
            ({"concurrency": 0}, ArgumentValueError),
            ({"timeout": 3}, ArgumentTypeError),
            ({"timeout": timedelta()}, ArgumentValueError),
            ({"transactional": "yes"}, ArgumentTypeError),
        ],
    )
    async def test_bad_options(self, room: Postroom, options: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            room.inbox().handler("t", **options)(always())
        room.inbox().handler("t")(always())  # nothing was registered

    async def test_what_cannot_be_called_with_a_message(self, room: Postroom) -> None:
        class Handler:
            def handle(self, message: Any) -> None: ...

        async def two(message: Any, other: Any) -> None: ...

        wrong: list[Any] = [Handler, 3, lambda: None, two]
        for function in wrong:
            with pytest.raises((ArgumentTypeError, ArgumentValueError)):
                room.inbox().handler("t")(function)

    async def test_what_its_annotation_contradicts(self, room: Postroom) -> None:
        """Otherwise every message would fail, until it is dead."""

        async def one(message: Message[Named]) -> None: ...
        async def bare(message: Message) -> None: ...
        async def some(messages: list[Message[Any]]) -> None: ...
        async def other(message: Message[int]) -> None: ...
        async def vague(message: Message[Shaped]) -> None: ...

        box = room.inbox()
        for function in (one, bare):
            with pytest.raises(ArgumentTypeError, match="gets a list"):
                box.handler("t", batch=2)(function)  # type: ignore[type-var]
        with pytest.raises(ArgumentTypeError, match="say how many, by batch="):
            box.handler("t")(some)  # type: ignore[type-var]
        with pytest.raises(ArgumentTypeError, match=r"registered for Named, .* annotated with int"):
            box.handler(Named)(other)  # type: ignore[arg-type]
        box.handler(Named)(one)
        box.handler(Payment)(vague)  # type: ignore[arg-type]  # what a type checker knows better is left to it
        box.handler("t", batch=2)(some)
        box.handler("u")(bare)

    async def test_what_no_handler_gets_or_returns(self, room: Postroom) -> None:
        """Its author would see it only in production, when the first message fails."""

        async def payload(payload: Payment) -> None: ...
        async def plain(payload: dict[str, Any]) -> None: ...
        async def payloads(payloads: list[Payment]) -> None: ...
        async def true(message: Message[Payment]) -> bool:
            return True

        box = room.inbox()
        wrong: list[tuple[Any, int | None, str]] = [
            (payload, None, r"annotated with Payment: annotate it with Message\[Payment\], and read message\.payload"),
            (plain, None, r"annotated with dict: annotate it with Message\[dict\]"),
            (payloads, 2, r"annotated with list\[Payment\]: annotate it with list\[Message\[Payment\]\]"),
            (true, None, "returns a bool, as it is annotated: return None for success, or an Outcome"),
        ]
        for function, batch, text in wrong:
            with pytest.raises(ArgumentTypeError, match=text):
                box.handler("t", batch=batch)(function)
        assert len(box.topics) == 0

    async def test_an_annotation_that_fits_is_accepted(self, room: Postroom) -> None:
        async def anything(message: Any) -> Any: ...
        async def thing(message: object) -> None: ...
        async def shaped(message: Shaped) -> None: ...
        async def either(message: Message[Payment] | Message[Named]) -> Outcome | None: ...
        async def some(messages: Iterable[Message[Payment]]) -> None: ...

        box = room.inbox()
        functions: list[Any] = [anything, thing, shaped, either]
        for number, function in enumerate(functions):
            box.handler(str(number))(function)
        box.handler("some", batch=2)(some)
        assert len(box.topics) == 5

    async def test_a_transaction_of_another_kind(self, room: Postroom, store: str) -> None:
        async def session(message: Message, tx: AsyncSession) -> None: ...
        async def connection(message: Message, tx: sqlite3.Connection) -> None: ...
        async def right(message: Message, tx: aiosqlite.Connection) -> None: ...

        if store == "memory":
            return
        with pytest.raises(ArgumentTypeError, match=r"passes a aiosqlite\.Connection: .* pool="):
            room.inbox().handler("t", transactional=True)(session)
        with pytest.raises(
            ArgumentTypeError, match=r"sqlite3\.Connection, and this room passes a aiosqlite.Connection"
        ):
            room.inbox().handler("t", transactional=True)(connection)
        room.inbox().handler("t", transactional=True)(right)

    async def test_a_transaction_that_no_room_passes(self, room: Postroom, store: str) -> None:
        """The handler would fail on each message, or get something else than it asks for."""
        if store == "memory":
            return
        register = room.inbox().handler("t", transactional=True)
        wrong: list[tuple[Any, str]] = [
            (str, "with str, and this room passes a aiosqlite.Connection: annotate it with that$"),
            (dict[str, Any], "with dict, and"),
            (None, "with NoneType, and"),
            (str | None, r"with str \| NoneType, and"),
            (Payment, "with tests.Payment, and"),
            (NewType("Text", str), "with str, and"),
            (AsyncSession | None, r"AsyncSession \| NoneType, and .* pool="),
            (AsyncSession | aiosqlite.Connection, r"AsyncSession \| aiosqlite.Connection, and this room passes a aio"),
            ("AsyncSesion", "with AsyncSesion, which cannot be resolved at run time"),
            ("sqlite3.Conection", "cannot be resolved .* import the name at the top .* or leave the annotation out"),
            ("Decimal", "with Decimal, which cannot be resolved .* outside of TYPE_CHECKING"),
            ("not a type", "cannot be resolved"),
        ]
        for annotation, text in wrong:
            with pytest.raises(ArgumentTypeError, match=text):
                register(transactional(annotation))

    async def test_a_transaction_that_the_room_may_pass(self, room: Postroom, store: str) -> None:
        class Own(aiosqlite.Connection): ...

        class Base(abc.ABC):
            @abc.abstractmethod
            def execute(self) -> None: ...

        if store == "memory":
            return
        right: list[Any] = [
            Any,
            object,
            Shaped,
            Base,
            contextlib.AbstractAsyncContextManager,
            inspect.Signature.empty,
            aiosqlite.Connection,
            "aiosqlite.Connection",
            "aiosqlite.Connection[sqlite3.Row]",
            aiosqlite.Connection | None,
            aiosqlite.Connection | psycopg.AsyncConnection[Any],
            Annotated[aiosqlite.Connection, 1],
            NewType("Tx", aiosqlite.Connection),
            TypeVar("Tx"),
            Own,
        ]
        for number, annotation in enumerate(right):
            room.inbox().handler(str(number), transactional=True)(transactional(annotation))
        assert len(room.inbox().topics) == len(right)

    async def test_a_transactional_handler_takes_the_transaction_and_is_async(self, room: Postroom, store: str) -> None:
        async def one(message: Any) -> None: ...
        async def two(message: Any, tx: Any) -> None: ...
        def plain(message: Any, tx: Any) -> None: ...

        register = room.inbox().handler("t", transactional=True)
        if store == "memory":
            with pytest.raises(FeatureMissing, match="without transactions"):
                register(two)
            return
        for wrong in (one, plain):
            with pytest.raises((ArgumentTypeError, ArgumentValueError), match="transactional"):
                register(wrong)  # type: ignore[type-var]
        register(two)

    async def test_a_type_that_no_payload_can_have(self, room: Postroom) -> None:
        async def handle(message: Message[dict[int, str] | dict[str, int]]) -> None: ...

        with pytest.raises(ArgumentTypeError, match="cannot be decoded"):
            room.inbox().handler("t")(handle)


def transactional(annotation: Any) -> Any:
    """A handler with this annotation of its transaction; `Signature.empty` is none."""

    async def handle(message, tx): ...  # type: ignore[no-untyped-def]

    if annotation is not inspect.Signature.empty:
        handle.__annotations__["tx"] = annotation
    return handle


class TestResults:
    @pytest.mark.parametrize(
        ("result", "state", "attempt", "error"),
        [
            (None, State.DONE, 0, None),
            (Outcome.SUCCESS, State.DONE, 0, None),
            (Outcome.FAILED, State.WAITING, 1, "failed"),
            (Outcome.FAILED.because("why"), State.WAITING, 1, "why"),
            (Outcome.RETRY.after(HOUR), State.WAITING, 0, None),
            (Outcome.RETRY.after(HOUR).because("later"), State.WAITING, 0, None),
            (Outcome.DEAD, State.DEAD, 1, "dead"),
            (Outcome.DEAD.because("why"), State.DEAD, 1, "why"),
            (ValueError("returned"), State.WAITING, 1, "ValueError: returned"),
            ("garbage", State.WAITING, 1, "the handler returned a str; return None or an Outcome"),
            (False, State.WAITING, 1, "the handler returned a bool; return None or an Outcome"),
        ],
    )
    @pytest.mark.req("RHI-103", "RHI-111", "RHI-113", "RHI-145", "RHI-146", "C-05", "C-06", "C-11")
    async def test_the_outcome_of_each_result(
        self, still: Postroom, result: Any, state: State, attempt: int, error: str | None
    ) -> None:
        for box in boxes(still):
            box.handler("t")(always(result))
            await put(box, 1)
            await still.drain()
            message = await box.get("1")
            assert (message.state, message.attempt, message.last_error) == (state, attempt, error)

    @pytest.mark.req("IBX-075", "OBX-050", "C-11")
    async def test_an_exception_is_a_failed_attempt(self, still: Postroom) -> None:
        async def handle(message: Any) -> None:
            raise LookupError("no such order")

        for box in boxes(still):
            box.handler("t")(handle)
            await put(box, 1)
            await still.drain()
            message = await box.get("1")
            assert (message.state, message.attempt) == (State.WAITING, 1)
            assert message.last_error == "LookupError: no such order"

    @pytest.mark.req("RHI-112", "RHI-145", "C-05")
    async def test_retry_is_at_once_and_uncounted(self, room: Postroom) -> None:
        box = room.inbox(poll_interval=HOUR)
        got: list[tuple[int, int]] = []
        done = asyncio.Event()

        @box.handler("t")
        async def handle(message: Message[str]) -> Outcome | None:
            got.append((message.attempt, message.deliveries))
            if len(got) < 4:
                return Outcome.RETRY
            done.set()
            return None

        await put(box, 1)
        await room.start()
        await soon(done.wait())
        await room.stop()
        assert got == [(0, 1), (0, 2), (0, 3), (0, 4)]
        assert await state_of(box) is State.DONE

    async def test_retry_and_failed_after_a_delay(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox()
        results = iter([Outcome.RETRY.after(timedelta(seconds=7)), Outcome.FAILED.after(timedelta(seconds=9)), None])
        box.handler("t")(lambda _: next(results))
        await put(box, 1)
        assert await still.drain() == 1
        for seconds in (7, 9):
            clock.advance(seconds - 1)
            assert await still.drain() == 0
            clock.advance(1)
            assert await still.drain() == 1
        assert await state_of(box) is State.DONE

    @pytest.mark.parametrize(
        "result",
        [
            Outcome.RETRY.after(5),  # type: ignore[arg-type]
            Outcome.RETRY.after(timedelta(seconds=-1)),
            Outcome.RETRY.after(timedelta.max),
            Outcome.FAILED.because(ValueError("x")),  # type: ignore[arg-type]
        ],
    )
    async def test_an_outcome_that_cannot_be_carried_out_spoils_nothing_else(
        self, still: Postroom, result: Outcome
    ) -> None:
        box = still.inbox()
        box.handler("bad")(always(result))
        box.handler("good")(always())
        await put(box, 1, topic="bad")
        await put(box, 2, topic="good")
        await soon(still.drain())
        assert await states(box) == {"1": State.WAITING, "2": State.DONE}
        assert (await box.get("1")).attempt == 1

    async def test_reasons_are_kept_bounded_and_clean(self, still: Postroom) -> None:
        box = still.inbox()
        box.handler("t")(always(Outcome.FAILED.because("\x00\ud800" + "x" * 10_000)))
        await put(box, 1)
        await soon(still.drain())
        error = (await box.get("1")).last_error
        assert error is not None
        assert len(error) == 4000
        assert error.startswith("\ufffd?x")

    async def test_odd_exceptions_do_not_end_the_worker(self, still: Postroom) -> None:
        class Rude(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        async def cancelled(message: Any) -> None:
            task = asyncio.ensure_future(asyncio.sleep(3600))
            task.cancel()
            await task

        async def cancels_itself(message: Any) -> None:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(3600)

        def stops_iteration(message: Any) -> None:
            next(iter([]))

        async def rude(message: Any) -> None:
            raise Rude

        box = still.inbox()
        odd = (cancelled, cancels_itself, stops_iteration, rude)
        for function in odd:
            box.handler(function.__name__)(function)
            await put(box, function.__name__, topic=function.__name__)
        box.handler("fine")(always())
        await put(box, "fine", topic="fine")
        await soon(still.drain())
        assert await state_of(box, "fine") is State.DONE
        for function in odd:
            assert (await box.get(function.__name__)).attempt == 1, function


class TestBatches:
    @pytest.mark.req("RHI-104", "RHI-108", "C-11")
    async def test_one_result_per_message_in_order(self, still: Postroom) -> None:
        box = still.inbox()

        @box.handler("t", batch=10)
        async def handle(messages: list[Message[str]]) -> list[Any]:
            return [None, Outcome.FAILED, Outcome.DEAD, Outcome.RETRY.after(HOUR), ValueError("x"), Outcome.SUCCESS]

        await put(box, *range(8))
        assert await still.drain() == 8
        found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
        assert found == {
            "0": (State.DONE, 0),
            "1": (State.WAITING, 1),
            "2": (State.DEAD, 1),
            "3": (State.WAITING, 0),
            "4": (State.WAITING, 1),
            "5": (State.DONE, 0),
            "6": (State.WAITING, 1),  # no result came for these
            "7": (State.WAITING, 1),
        }
        assert (await box.get("7")).last_error == "the handler returned no result for this message"

    @pytest.mark.req("RHI-108", "C-11")
    async def test_results_by_message_id(self, still: Postroom) -> None:
        box = still.inbox()

        @box.handler("t", batch=10)
        async def handle(messages: list[Message[str]]) -> dict[str, Any]:
            return {"1": None, "3": Outcome.DEAD, "stranger": None}

        await put(box, 1, 2, 3)
        await still.drain()
        assert await states(box) == {"1": State.DONE, "2": State.WAITING, "3": State.DEAD}

    @pytest.mark.req("RHI-108")
    async def test_results_by_key_where_sources_share_ids(self, still: Postroom) -> None:
        box = still.inbox()

        @box.handler("t", batch=10)
        async def handle(messages: list[Message[str]]) -> dict[Any, Any]:
            return {message.key: None if message.source == "a" else Outcome.DEAD for message in messages}

        for source in ("a", "b"):
            await box.enqueue("t", "x", source=source, message_id="1")
        await still.drain()
        assert {m.source: m.state for m in await box.find()} == {"a": State.DONE, "b": State.DEAD}

    @pytest.mark.parametrize(
        ("result", "state", "attempt"),
        [
            (None, State.DONE, 0),
            (Outcome.SUCCESS, State.DONE, 0),
            (Outcome.DEAD, State.DEAD, 1),
            ("ok", State.WAITING, 1),
            ([], State.WAITING, 1),
            ({}, State.WAITING, 1),
            (object(), State.WAITING, 1),
        ],
    )
    @pytest.mark.req("C-11")
    async def test_one_result_for_all(self, still: Postroom, result: Any, state: State, attempt: int) -> None:
        box = still.inbox()
        box.handler("t", batch=10)(always(result))
        await put(box, 1, 2, 3)
        await still.drain()
        assert {(m.state, m.attempt) for m in await box.find()} == {(state, attempt)}

    @pytest.mark.req("C-11")
    async def test_an_exception_fails_all(self, still: Postroom) -> None:
        box = still.inbox()

        @box.handler("t", batch=10)
        async def handle(messages: list[Message[str]]) -> None:
            raise RuntimeError("no")

        await put(box, 1, 2, 3)
        await still.drain()
        assert {(m.state, m.attempt, m.last_error) for m in await box.find()} == {
            (State.WAITING, 1, "RuntimeError: no")
        }


class TestUndecodable:
    @pytest.mark.parametrize(
        ("kind", "payload"),
        [
            (Order, {"number": SECRET}),
            (Order, SECRET),
            (Payment, {"amount": SECRET}),
            (Paint, {"mode": SECRET}),
            (Sealed, {SECRET: 1}),
            (Person, {"name": SECRET}),
            (Person, {"name": "n", "age": SECRET}),
            (Person, {"name": "n", "age": 1, "kind": SECRET}),
            (Person, {"name": "n", "age": 1, "cards": {SECRET: "x"}}),
            (Picky, {"value": SECRET}),
            (list, "[" * 100_000),
        ],
    )
    @pytest.mark.parametrize("way", ["failed", "dead"])
    @pytest.mark.req("C-11")
    async def test_it_ends_as_the_option_says_and_its_payload_is_not_logged(
        self, still: Postroom, caplog: pytest.LogCaptureFixture, kind: Any, payload: Any, way: Any
    ) -> None:
        caplog.set_level(logging.DEBUG)
        box = still.inbox(on_undecodable=way)
        got: list[Any] = []

        @box.handler(kind, batch=5)  # type: ignore[untyped-decorator]
        async def handle(messages: list[Any]) -> None:
            got.extend(messages)

        name = getattr(kind, "__name__", "")
        await put(box, 1, topic=name, payload=payload)
        await soon(still.drain())
        message = await box.get("1")
        assert got == []
        assert (message.state, message.attempt) == ((State.DEAD, 0) if way == "dead" else (State.WAITING, 1))
        assert message.last_error is not None
        assert message.last_error.startswith(f"Undecodable: the payload is not a {name} (")
        assert SECRET not in message.last_error
        assert SECRET not in caplog.text
        [record] = [r for r in caplog.records if "not a" in r.message]
        assert record.levelno == (logging.ERROR if way == "dead" else logging.WARNING)
        assert "message_id=1" in record.message
        assert message.payload == payload  # it is kept, and can be replayed

    @pytest.mark.req("C-11")
    async def test_the_rest_of_its_batch_is_handled(self, still: Postroom) -> None:
        box = still.inbox()
        got: list[int] = []

        @box.handler("t", batch=10)
        async def handle(messages: list[Message[Order]]) -> list[Outcome]:
            got.extend(message.payload.number for message in messages)
            return [Outcome.SUCCESS, Outcome.DEAD]

        await put(box, 1, payload=Order(1))
        await put(box, 2, payload={"number": "x"})
        await put(box, 3, payload=Order(3))
        await still.drain()
        assert got == [1, 3]
        assert await states(box) == {"1": State.DONE, "2": State.WAITING, "3": State.DEAD}

    @pytest.mark.parametrize("store", ["aiosqlite"])
    async def test_broken_json_in_the_database(self, open_room: OpenRoom, tmp_path: Path) -> None:
        """Only a damaged row: it must not reach a handler that expects JSON as if it were text."""
        room = await open_room()
        box = room.inbox()
        got: list[Any] = []
        box.handler("t")(lambda message: got.append(message.payload))
        await put(box, 1, payload={"a": 1})
        with sqlite3.connect(f"{tmp_path}/room.db") as connection:
            connection.execute("UPDATE postroom_message SET payload = '{' ")
        await room.drain()
        assert got == []
        assert (
            await box.get("1")
        ).last_error == "Undecodable: the payload is not valid JSON (Input data was truncated)"


class TestUnhandled:
    @pytest.mark.parametrize(
        ("way", "state", "attempt"),
        [("abandon", State.WAITING, 1), ("release", State.WAITING, 0), ("dead", State.DEAD, 0)],
    )
    @pytest.mark.req("IBX-074", "OBX-049", "C-10")
    async def test_a_topic_without_handler(
        self,
        still: Postroom,
        clock: FrozenClock,
        caplog: pytest.LogCaptureFixture,
        way: Any,
        state: State,
        attempt: int,
    ) -> None:
        for box in (still.inbox(on_unhandled=way), still.outbox(on_unhandled=way)):
            box.handler("t")(always())
            await put(box, 1, topic="other")
            await put(box, 2)
            caplog.clear()
            await still.drain()
            message = await box.get("1")
            assert (message.state, message.attempt) == (state, attempt)
            assert await state_of(box, 2) is State.DONE
            [record] = [r for r in caplog.records if r.levelno >= logging.WARNING]
            assert record.levelno == (logging.ERROR if way == "dead" else logging.WARNING)
            assert "message_id=1" in record.message
            assert "no handler" in record.message

    @pytest.mark.req("IBX-074", "OBX-049", "C-10")
    async def test_to_abandon_is_the_default(self, still: Postroom) -> None:
        for box in boxes(still):
            box.handler("t")(always())
            await put(box, 1, topic="other")
            await still.drain()
            assert (await box.get("1")).attempt == 1

    @pytest.mark.req("C-10")
    async def test_release_waits_for_a_while(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox(on_unhandled="release", max_poll_interval=timedelta(seconds=20))
        box.handler("t")(always())
        await put(box, 1, topic="other")
        assert await still.drain() == 1
        clock.advance(19)
        assert await still.drain() == 0
        clock.advance(1)
        assert await still.drain() == 1

    @pytest.mark.req("C-10")
    async def test_only_the_topics_that_were_asked_for(self, still: Postroom) -> None:
        box = still.inbox(only_handled=True)
        box.handler("t")(always())
        await put(box, 1, topic="other")
        await put(box, 2)
        assert await still.drain() == 1
        assert (await box.get("1")).deliveries == 0


class TestTimeouts:
    @pytest.mark.req("C-27")
    async def test_a_handler_that_takes_too_long_has_failed(self, still: Postroom) -> None:
        cancelled: list[str] = []
        box = still.inbox(handler_timeout=timedelta(milliseconds=20))

        async def slow(message: Any) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.message_id)
                raise

        box.handler("box")(slow)
        box.handler("own", timeout=timedelta(milliseconds=10))(slow)
        await put(box, 1, topic="box")
        await put(box, 2, topic="own")
        await soon(still.drain())
        assert sorted(cancelled) == ["1", "2"]
        for id_, most in (("1", "0:00:00.020000"), ("2", "0:00:00.010000")):
            message = await box.get(id_)
            assert (message.state, message.attempt) == (State.WAITING, 1)
            assert message.last_error == f"HandlerTimeout: the handler took longer than {most}"

    async def test_a_timeout_that_the_handler_raises_is_stored_unchanged(self, still: Postroom) -> None:
        box = still.inbox(handler_timeout=HOUR)

        @box.handler("t")
        async def handle(message: Any) -> None:
            raise TimeoutError("the bank did not respond")

        await put(box, 1)
        await still.drain()
        assert (await box.get("1")).last_error == "TimeoutError: the bank did not respond"

    @pytest.mark.req("IBX-078", "OBX-053")
    async def test_a_thread_cannot_be_stopped_and_is_waited_for(self, still: Postroom) -> None:
        """To go on without it would be to handle the message twice at the same time."""
        box = still.inbox(handler_timeout=timedelta(milliseconds=5), concurrency=3)
        go_on = threading.Event()

        @box.handler("t")
        def handle(message: Any) -> None:
            go_on.wait(10)

        await put(box, 1)
        with Logged() as logged:
            draining = asyncio.ensure_future(still.drain())
            await logged.says("waiting for it")
            assert await state_of(box) is State.CLAIMED
            go_on.set()
            await soon(draining)
        message = await box.get("1")
        assert (message.state, message.attempt) == (State.WAITING, 1)


class TestConcurrency:
    @pytest.mark.req("IBX-079", "OBX-054", "RHI-092", "C-49")
    @pytest.mark.parametrize("most", [1, 3])
    async def test_of_a_box(self, room: Postroom, most: int) -> None:
        for box in (room.inbox(concurrency=most), room.outbox(concurrency=most)):
            gate, gauge = Gate(), Gauge()

            @box.handler("t")
            async def handle(message: Any, gate: Gate = gate, gauge: Gauge = gauge) -> None:
                with gauge:
                    await gate(message)

            await put(box, *range(7))
            draining = asyncio.ensure_future(room.drain())
            await gate.reached(most)
            gate.open()
            assert await soon(draining) == 7
            assert gauge.most == most

    @pytest.mark.req("RHI-092", "C-49")
    async def test_one_at_a_time_is_the_default(self, room: Postroom) -> None:
        box = room.inbox()
        gauge = Gauge()

        @box.handler("t")
        async def handle(message: Any) -> None:
            with gauge:
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        await put(box, *range(20))
        await room.drain()
        assert gauge.most == 1

    @pytest.mark.req("C-49")
    async def test_of_threads(self, room: Postroom) -> None:
        """As many as were asked for: more than asyncio's own pool has on a small machine."""
        box = room.inbox(concurrency=40)
        barrier = threading.Barrier(40)

        @box.handler("t")
        def handle(message: Any) -> None:
            barrier.wait(10)

        await put(box, *range(40))
        await soon(room.drain())
        assert set((await states(box)).values()) == {State.DONE}

    async def test_of_a_handler(self, room: Postroom) -> None:
        box = room.inbox(concurrency=4)
        gate, narrow, wide = Gate(), Gauge(), Gauge()

        @box.handler("narrow", concurrency=2)
        async def one(message: Any) -> None:
            with narrow:
                await gate(message)

        @box.handler("wide")
        async def other(message: Any) -> None:
            with wide:
                await gate(message)

        await put(box, *range(5), topic="narrow")
        await put(box, *range(5, 9), topic="wide")
        draining = asyncio.ensure_future(room.drain())
        await gate.reached(4)  # those that must wait do not keep the others from the free workers
        assert (narrow.now, wide.now) == (2, 2)
        gate.open()
        await soon(draining)
        assert narrow.most == 2

    async def test_of_a_handler_in_the_middle_of_groups(self, room: Postroom) -> None:
        box = room.inbox(order="fifo", concurrency=4)
        gauge, order = Gauge(), []

        @box.handler("first")
        async def first(message: Any) -> None:
            await asyncio.sleep(0)

        @box.handler("second", concurrency=1)
        async def second(message: Any) -> None:
            with gauge:
                order.append(message.group)
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        for group in "abcd":
            await put(box, f"{group}1", topic="first", group=group)
            await put(box, f"{group}2", topic="second", group=group)
        await soon(room.drain())
        assert gauge.most == 1
        assert sorted(order) == ["a", "b", "c", "d"]
        assert set((await states(box)).values()) == {State.DONE}

    @pytest.mark.req("IBX-078", "OBX-053")
    @pytest.mark.parametrize("renewal", [True, False])
    async def test_never_the_same_message_twice_at_once(
        self, open_room: OpenRoom, clock: FrozenClock, events: Events, renewal: bool
    ) -> None:
        """Even where the worker itself claims again what its handler holds, since the lease has passed: the handler
        goes on under the new lease."""
        room = await open_room(clock, observers=[events])
        for box in (
            room.inbox(concurrency=3, lease_renewal=renewal, poll_interval=timedelta(milliseconds=1)),
            room.outbox(concurrency=3, lease_renewal=renewal, poll_interval=timedelta(milliseconds=1)),
        ):
            gate = Gate()
            box.handler("t")(gate)
            await put(box, 1)
            await box.start()
            await gate.reached()
            clock.advance(31)
            claimed = await events.wait("claim", functools.partial(_again, box.box))
            assert ids(claimed.result) == ["1"]
            await put(box, 2)
            await gate.reached(2)  # there are free workers, and they do work
            gate.open()
            await box.stop()
            assert ids(gate.entered) == ["1", "2"]
            assert not gate.entered[0].lease_lost
            assert await states(box) == {"1": State.DONE, "2": State.DONE}


def _again(box: Any, event: Any) -> bool:
    return event.box == box and any(message.deliveries == 2 for message in event.result)
