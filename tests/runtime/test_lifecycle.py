"""Starting and stopping: in every order, with hooks, with patience and without."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import (
    ArgumentTypeError,
    Backoff,
    Message,
    Outcome,
    Postroom,
    RoomClosed,
    SchemaMissing,
    State,
    Undecodable,
)
from postroom.testing import Events, FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, Logged, always, ids, put, soon, state_of, states


def tasks() -> set[Any]:
    return asyncio.all_tasks()


class TestStartAndStop:
    @pytest.mark.req("RHI-123", "RHI-124", "RHI-125", "RHI-126")
    async def test_everything_that_has_handlers(self, room: Postroom) -> None:
        got, all_ = list[str](), asyncio.Event()

        async def handle(message: Message[str]) -> None:
            got.append(message.message_id)
            if len(got) == 3:
                all_.set()

        boxes: list[Any] = [room.inbox(), room.inbox("other"), room.outbox()]
        quiet = room.outbox("quiet")
        for number, box in enumerate(boxes):
            box.handler("t")(handle)
            await put(box, number)
        running = [room.is_running]
        await room.start()
        running.append(room.is_running)
        assert running == [False, True]
        assert [box.is_running for box in (*boxes, quiet)] == [True, True, True, False]
        await soon(all_.wait())
        await room.stop()
        assert not room.is_running
        assert [box.is_running for box in boxes] == [False] * 3
        await put(boxes[0], "later")
        assert await state_of(boxes[0], "later") is State.WAITING
        assert room.inbox("other") is boxes[1]

    async def test_nothing_is_left_behind(self, room: Postroom) -> None:
        before = tasks()
        room.inbox(concurrency=5).handler("t")(always())
        await room.start()
        assert len(tasks()) > len(before)
        await room.stop()
        assert tasks() == before

    async def test_as_a_context(self, open_room: OpenRoom) -> None:
        room = await open_room()
        box = room.inbox()
        gate = Gate()
        gate.open()
        box.handler("t")(gate)
        async with room as entered:
            assert entered is room
            await put(box, 1)
            await gate.reached()
        assert not room.is_running

    async def test_an_error_inside_the_context_stops_it_too(self, open_room: OpenRoom) -> None:
        room = await open_room()
        room.inbox().handler("t")(always())
        with pytest.raises(ZeroDivisionError):
            async with room:
                raise ZeroDivisionError
        assert not room.is_running

    async def test_twice(self, room: Postroom, events: Events) -> None:
        hooks: list[str] = []
        room.on_start(lambda: hooks.append("start"))
        room.on_stop(lambda: hooks.append("stop"))
        room.inbox(poll_interval=HOUR).handler("t")(always())
        before = tasks()
        await room.start()
        running = tasks()
        await room.start()
        assert tasks() == running
        await room.stop()
        await room.stop()
        assert tasks() == before
        assert hooks == ["start", "stop"]

    async def test_stop_without_start(self, room: Postroom) -> None:
        hooks: list[str] = []
        room.on_stop(lambda: hooks.append("stop"))
        room.inbox().handler("t")(always())
        await room.stop()
        await room.inbox().stop()
        assert hooks == []

    async def test_again_for_handlers_that_came_later(self, room: Postroom) -> None:
        hooks: list[str] = []
        room.on_start(lambda: hooks.append("start"))
        first = Gate()
        room.inbox("first", poll_interval=HOUR).handler("t")(first)
        await room.start()
        box, gate = room.inbox("second", poll_interval=HOUR), Gate()
        gate.open()
        box.handler("t")(gate)
        await put(box, 0)
        await room.start()
        await gate.reached(1)
        await room.stop()
        assert await state_of(box, 0) is State.DONE
        assert hooks == ["start"]

    async def test_start_after_stop(self, room: Postroom) -> None:
        box = room.inbox(poll_interval=HOUR)
        gate = Gate()
        gate.open()
        box.handler("t")(gate)
        for number in range(3):
            await put(box, number)
            await room.start()
            await gate.reached(number + 1)
            await room.stop()
            assert await state_of(box, number) is State.DONE

    async def test_stop_while_starting(self, room: Postroom) -> None:
        began, go_on = asyncio.Event(), asyncio.Event()

        @room.on_start
        async def slow() -> None:
            began.set()
            await go_on.wait()

        room.inbox().handler("t")(always())
        before = tasks()
        starting = asyncio.ensure_future(room.start())
        await began.wait()
        stopping = asyncio.ensure_future(room.stop())
        assert not room.is_running
        go_on.set()
        await soon(asyncio.gather(starting, stopping))
        assert not room.is_running
        assert tasks() == before

    async def test_a_start_that_is_cancelled_is_undone(self, room: Postroom) -> None:
        began, undone = asyncio.Event(), list[str]()

        @room.on_start
        async def slow() -> None:
            began.set()
            await asyncio.Event().wait()

        room.on_stop(lambda: undone.append("stop"))
        starting = asyncio.ensure_future(room.start())
        await began.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not room.is_running
        assert undone == ["stop"]

    async def test_at_once_from_everywhere(self, room: Postroom) -> None:
        room.inbox().handler("t")(always())
        before = tasks()
        await soon(asyncio.gather(*(f() for f in [room.start, room.stop, room.inbox().start, room.inbox().stop] * 5)))
        await room.stop()
        assert tasks() == before

    @pytest.mark.req("RHI-019", "RHI-129")
    async def test_a_room_without_handlers_only_writes(self, room: Postroom, events: Events) -> None:
        before = tasks()
        box = room.inbox()
        await put(box, 0)  # before it is started
        async with asyncio.timeout(10):
            await room.start()
        assert tasks() == before
        assert room.is_running
        await put(box, 1)
        assert await states(box) == {"0": State.WAITING, "1": State.WAITING}
        assert room.health() == {}
        assert events.of("claim") == []


class TestOneBox:
    @pytest.mark.req("RHI-123", "RHI-124")
    async def test_alone(self, room: Postroom) -> None:
        one, two = room.inbox("one", poll_interval=HOUR), room.inbox("two", poll_interval=HOUR)
        gate = Gate()
        gate.open()
        one.handler("t")(gate)
        two.handler("t")(gate)
        await put(one, 1)
        await put(two, 2)
        await one.start()
        await one.start()
        await gate.reached()
        assert (one.is_running, two.is_running, room.is_running) == (True, False, False)
        await one.stop()
        await one.stop()
        assert not one.is_running
        assert ids(gate.entered) == ["1"]
        await room.start()
        await gate.reached(2)
        await two.stop()
        assert (one.is_running, two.is_running, room.is_running) == (True, False, True)
        await two.start()
        assert two.is_running

    async def test_the_room_starts_beside_a_box_that_runs(self, room: Postroom) -> None:
        """There must not be a second worker for it, which no stop would end."""
        before = tasks()
        one, two = room.inbox("one"), room.inbox("two")
        one.handler("t")(always())
        two.handler("t")(always())
        await one.start()
        worker = room._supervisor._states.get().running["inbox:one"]
        await room.start()
        assert room._supervisor._states.get().running["inbox:one"] is worker
        await room.stop()
        assert tasks() == before

    async def test_a_box_without_handlers_does_not_start(self, room: Postroom) -> None:
        await room.inbox().start()
        assert not room.inbox().is_running


class TestHooks:
    @pytest.mark.req("RHI-008", "RHI-130", "RHI-131")
    async def test_in_order_and_back(self, room: Postroom) -> None:
        calls: list[str] = []
        box = room.inbox(poll_interval=HOUR)
        box.handler("t")(always())

        def plain(name: str) -> Callable[[], None]:
            return lambda: calls.append(f"{name} {box.is_running}")

        async def coroutine() -> None:
            await asyncio.sleep(0)
            calls.append(f"async {box.is_running}")

        room.on_start(plain("first"))
        assert room.on_start(coroutine) is coroutine
        room.on_stop(plain("one"))
        room.on_stop(coroutine)
        await room.start()
        assert calls == ["first False", "async False"]
        calls.clear()
        await room.stop()
        assert calls == ["async False", "one False"]

    @pytest.mark.req("RHI-130")
    async def test_a_failure_on_start_undoes_what_was_begun(self, room: Postroom) -> None:
        calls: list[str] = []
        before = tasks()
        room.inbox().handler("t")(always())
        broken = True

        def fails() -> None:
            calls.append("start 2")
            if broken:
                raise OSError("no broker")

        room.on_start(lambda: calls.append("start 1"))
        room.on_start(fails)
        room.on_start(lambda: calls.append("start 3"))
        for number in (1, 2, 3):
            room.on_stop(lambda number=number: calls.append(f"stop {number}"))
        with pytest.raises(OSError, match="no broker"):
            await room.start()
        assert calls == ["start 1", "start 2", "stop 2", "stop 1"]
        assert not room.is_running
        assert tasks() == before
        broken = False
        await room.start()
        assert room.is_running

    async def test_one_may_make_the_tables(self, store: str, tmp_path: Path) -> None:
        room = Postroom("memory://" if store == "memory" else f"sqlite:///{tmp_path}/new.db")
        room.inbox().handler("t")(always())
        room.on_start(room.migrate)
        async with room:
            assert await room.is_ready()

    async def test_missing_tables_undo_them(self, tmp_path: Path) -> None:
        calls: list[str] = []
        room = Postroom(f"sqlite:///{tmp_path}/new.db")
        room.inbox().handler("t")(always())
        room.on_start(lambda: calls.append("start"))
        room.on_stop(lambda: calls.append("stop"))
        with pytest.raises(SchemaMissing):
            await room.start()
        assert (calls, room.is_running) == (["start", "stop"], False)
        await room.close()

    @pytest.mark.req("RHI-130")
    async def test_a_failure_on_stop_is_logged_and_the_others_run(self, room: Postroom) -> None:
        calls: list[str] = []

        async def fails() -> None:
            raise OSError("no broker")

        room.on_stop(lambda: calls.append("first"))
        room.on_stop(fails)
        room.on_stop(lambda: calls.append("last"))
        await room.start()
        with Logged() as logged:
            await room.stop()
        assert calls == ["last", "first"]
        [record] = logged.saying("a hook failed on stop")
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None


class TestShutdown:
    @pytest.mark.req("RHI-088", "C-54")
    async def test_it_waits_for_handlers_and_gives_the_rest_back_at_once(
        self, room: Postroom, open_room: OpenRoom, events: Events
    ) -> None:
        box = room.inbox()
        gate = Gate()
        box.handler("t")(gate)
        await put(box, *range(5))
        await room.start()
        await gate.reached()
        stopping = asyncio.ensure_future(room.stop())
        await events.wait("settle")
        # One is still handled; the others are free for other workers already, and nothing was counted.
        found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
        assert found == {"0": (State.CLAIMED, 0)} | {str(n): (State.WAITING, 0) for n in range(1, 5)}
        assert not stopping.done()
        gate.open()
        await soon(stopping)
        assert ids(gate.entered) == ["0"]
        assert await state_of(box, 0) is State.DONE

    @pytest.mark.req("C-54")
    async def test_between_the_messages_of_a_group(self, room: Postroom) -> None:
        box = room.inbox(order="fifo")
        gate = Gate()
        box.handler("t")(gate)
        await put(box, *range(5), group="g")
        await room.start()
        await gate.reached()
        stopping = asyncio.ensure_future(room.stop())
        await asyncio.sleep(0)
        gate.open()
        await soon(stopping)
        assert ids(gate.entered) == ["0"]
        assert {id_ for id_, state in (await states(box)).items() if state is State.WAITING} == set("1234")

    @pytest.mark.req("C-54")
    async def test_what_a_claim_brings_after_the_stop_is_given_back(self, room: Postroom) -> None:
        box = room.inbox()
        got: list[Any] = []
        box.handler("t")(got.append)
        exchange: Any = room.store.exchange
        claimed, may_return = asyncio.Event(), asyncio.Event()

        async def slow_exchange(*args: Any) -> Any:
            result = await exchange(*args)
            claimed.set()
            await may_return.wait()
            return result

        room.store.exchange = slow_exchange
        await put(box, 1, 2)
        await room.start()
        await soon(claimed.wait())
        stopping = asyncio.ensure_future(room.stop())
        await asyncio.sleep(0)
        may_return.set()
        await soon(stopping)
        assert got == []
        assert {(m.state, m.attempt) for m in await box.find()} == {(State.WAITING, 0)}

    @pytest.mark.req("RHI-088", "C-54", "IBX-API-25", "IBX-076", "OBX-051")
    async def test_the_end_of_patience(self, open_room: OpenRoom) -> None:
        room = await open_room(shutdown_timeout=timedelta(milliseconds=20))
        box = room.inbox(concurrency=3)
        gate, cancelled = Gate(), list[str]()

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            try:
                await gate(message)
            except asyncio.CancelledError:
                cancelled.append(message.message_id)
                raise

        await put(box, 1, 2, 3)
        await room.start()
        await gate.reached(3)
        with Logged() as logged:
            await soon(room.stop())
        assert sorted(cancelled) == ["1", "2", "3"]
        assert {(m.state, m.attempt) for m in await box.find()} == {(State.WAITING, 0)}
        [record] = logged.saying("did not end in")
        assert record.levelno == logging.WARNING
        assert "box=inbox:inbox" in record.message
        assert "store=" in record.message

    @pytest.mark.req("C-54")
    @pytest.mark.parametrize("how", ["returns", "raises", "groups"])
    async def test_a_handler_that_keeps_its_cancellation_to_itself(self, open_room: OpenRoom, how: str) -> None:
        room = await open_room(shutdown_timeout=SOON)
        box = room.inbox(order="fifo" if how == "groups" else "none")
        gate = Gate()

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            try:
                await gate(message)
            except asyncio.CancelledError:
                if how == "raises":
                    raise RuntimeError("interrupted") from None

        await put(box, 1, 2, group="g")
        await room.start()
        await gate.reached()
        with Logged() as logged:
            await soon(room.stop())
        assert logged.saying("left behind") == []
        found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
        assert found["1"] == ((State.WAITING, 0) if how == "raises" else (State.DONE, 0))
        assert found["2"] == (State.WAITING, 0)
        assert ids(gate.entered) == ["1"]

    @pytest.mark.req("C-54")
    async def test_a_thread_that_does_not_end(self, open_room: OpenRoom) -> None:
        room = await open_room(shutdown_timeout=SOON)
        box = room.inbox()
        began, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        @box.handler("t")
        def handle(message: Message[str]) -> None:
            loop.call_soon_threadsafe(began.set)
            go_on.wait(10)

        await put(box, 1)
        await room.start()
        await soon(began.wait())
        await soon(room.stop())
        message = await box.get("1")
        assert (message.state, message.attempt) == (State.WAITING, 0)
        go_on.set()

    @pytest.mark.req("RHI-088", "C-54")
    async def test_thirty_seconds_by_default(self) -> None:
        assert Postroom("memory://")._supervisor.shutdown_seconds == 30

    @pytest.mark.req("C-54")
    async def test_an_outcome_on_its_way_survives_the_end_of_patience(self, open_room: OpenRoom) -> None:
        """The settle under way is cut off; it is handed in again, and not as a release."""
        room = await open_room(shutdown_timeout=SOON)
        box = room.inbox()
        box.handler("t")(always())
        real: Any = room.store.settle
        real_exchange: Any = room.store.exchange
        stuck = asyncio.Event()

        async def exchange(*args: Any) -> Any:
            if args[1]:
                stuck.set()
                await asyncio.Event().wait()
            return await real_exchange(*args)

        async def settle(*args: Any, **kwargs: Any) -> Any:
            if not stuck.is_set():
                stuck.set()
                await asyncio.Event().wait()
            return await real(*args, **kwargs)

        room.store.exchange, room.store.settle = exchange, settle
        await put(box, 1)
        await room.start()
        await soon(stuck.wait())
        await soon(room.stop())
        assert await state_of(box) is State.DONE


class TestHealth:
    async def test_how_each_box_is_doing(self, room: Postroom) -> None:
        box = room.inbox()
        gate = Gate()
        box.handler("t")(gate)
        assert room.health() == {}
        await put(box, 1, 2)
        await room.start()
        await gate.reached()
        assert room.health() == {"inbox:inbox": (True, 2, 2, None)}
        assert await room.is_ready()
        gate.open()
        await room.stop()
        assert room.health() == {}

    async def test_not_ready_without_a_schema_or_when_closed(self, store: str, tmp_path: Path) -> None:
        if store == "memory":
            room = Postroom("memory://")
            assert await room.is_ready()
            return
        room = Postroom(f"sqlite:///{tmp_path}/empty.db")
        room.inbox()
        assert not await room.is_ready()
        await room.migrate()
        assert await room.is_ready()
        await room.close()
        assert not await room.is_ready()

    async def test_to_be_ready_costs_the_same_however_much_there_is(self, room: Postroom, events: Events) -> None:
        """No page is read, which may cost more the more there is: one id is looked up, which no message has."""
        room.inbox().handler("t")(always())
        await room.start()
        assert await room.is_ready()
        assert [event.given.ids for event in events.of("find")] == [(0,), (0,)]
        assert [event.result for event in events.of("find")] == [[], []]


class TestRaisingErrors:
    """`drain(raise_errors=True)`: a test whose handler fails must not pass."""

    async def test_nothing_where_all_is_well(self, still: Postroom) -> None:
        still.inbox().handler("t")(always())
        await put(still.inbox(), 1, 2)
        assert await soon(still.drain(raise_errors=True)) == 2

    @pytest.mark.parametrize("batch", [None, 5])
    async def test_one_as_it_is(self, still: Postroom, batch: int | None) -> None:
        """When everything else that was ready is handled."""
        box = still.inbox()
        error = LookupError("no such order")

        @box.handler("t", batch=batch)
        async def handle(given: Any) -> None:
            if "2" in ids([given] if batch is None else given):
                raise error

        await put(box, 1, 2, 3)
        with pytest.raises(LookupError) as raised:
            await soon(still.drain(raise_errors=True))
        assert raised.value is error
        assert await states(box) == {"1": State.DONE, "2": State.WAITING, "3": State.DONE}
        assert (await box.get("2")).attempt == 1

    async def test_several_as_a_group(self, still: Postroom) -> None:
        inbox, outbox = still.inbox(), still.outbox()

        @inbox.handler("t")
        async def incoming(message: Message[str]) -> None:
            raise LookupError(message.message_id)

        @outbox.handler("t")
        def outgoing(message: Message[str]) -> None:
            raise OSError(message.message_id)

        await put(inbox, 1, 2)
        await put(outbox, 3)
        with pytest.raises(ExceptionGroup) as raised:
            await soon(still.drain(raise_errors=True))
        assert sorted(map(repr, raised.value.exceptions)) == ["LookupError('1')", "LookupError('2')", "OSError('3')"]

    async def test_the_last_of_a_message_that_is_tried_again_at_once(self, still: Postroom) -> None:
        box = still.inbox(backoff=Backoff.immediate(), max_attempts=3)

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            raise LookupError(message.attempt)

        await put(box, 1)
        with pytest.raises(LookupError, match="2"):
            await soon(still.drain(raise_errors=True))
        assert await state_of(box) == State.DEAD

    async def test_a_payload_that_cannot_be_decoded(self, still: Postroom) -> None:
        @still.inbox().handler("t")
        async def handle(message: Message[int]) -> None: ...

        await put(still.inbox(), 1, payload="x")
        with pytest.raises(Undecodable):
            await soon(still.drain(raise_errors=True))

    async def test_not_the_outcome_that_a_handler_returns(self, still: Postroom) -> None:
        still.inbox().handler("t")(always(Outcome.FAILED))
        await put(still.inbox(), 1)
        assert await soon(still.drain(raise_errors=True)) == 1

    async def test_is_a_flag(self, still: Postroom) -> None:
        with pytest.raises(ArgumentTypeError, match="raise_errors"):
            await still.drain(raise_errors=1)  # type: ignore[arg-type]


class TestClosed:
    """What was closed cannot be started, whether it has handlers or not."""

    @pytest.mark.parametrize("has_handlers", [True, False])
    async def test_raises(self, room: Postroom, has_handlers: bool) -> None:
        box = room.inbox()
        if has_handlers:
            box.handler("t")(always())
        await room.close()
        for begin in (room.start, room.drain, box.start, room.__aenter__):
            with pytest.raises(RoomClosed):
                await begin()
        assert not room.is_running


class TestDrain:
    async def test_until_nothing_is_ready(self, still: Postroom, clock: FrozenClock) -> None:
        """What handlers send on is handled too, in whichever box; what is due later is not."""
        inbox, outbox = still.inbox(), still.outbox()
        got: list[str] = []

        @outbox.handler("a")
        async def first(message: Message[str]) -> None:
            got.append(message.message_id)
            await put(inbox, "second", topic="b")

        @inbox.handler("b")
        async def second(message: Message[str]) -> None:
            got.append(message.message_id)
            await put(outbox, "third", topic="c")

        outbox.handler("c")(lambda message: got.append(message.message_id))
        await put(outbox, "first", topic="a")
        await put(outbox, "later", topic="c", due=clock.now() + HOUR)
        assert await still.drain() == 3
        assert got == ["first", "second", "third"]
        assert await still.drain() == 0
        clock.advance(HOUR)
        assert await still.drain() == 1

    async def test_beside_a_room_that_runs(self, room: Postroom) -> None:
        box = room.inbox(concurrency=2)
        got: list[str] = []
        box.handler("t")(lambda message: got.append(message.message_id))
        await put(box, *range(50))
        await room.start()
        await soon(room.drain())
        await room.stop()
        assert sorted(got, key=int) == [str(n) for n in range(50)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("store", ["aiosqlite"])
async def test_run_until_a_signal(open_room: OpenRoom, tmp_path: Path, number: int) -> None:
    """A separate process: it waits for its handler, releases the rest, runs its hooks and ends."""
    room = await open_room()
    box = room.inbox()
    await put(box, 1, 2, 3)
    command = (sys.executable, "-m", "tests.runtime.serving", f"{tmp_path}/room.db")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    read: Callable[[], Awaitable[bytes]] = process.stdout.readline
    try:
        assert [await soon(read(), 30), await soon(read(), 30)] == [b"started\n", b"handling 1\n"]
        process.send_signal(number)
        assert [await soon(read()), await soon(read())] == [b"done 1\n", b"stopped\n"]
        assert await soon(process.wait()) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
    assert found == {"1": (State.DONE, 0), "2": (State.WAITING, 0), "3": (State.WAITING, 0)}
