"""The cleanup of a guard in a running room: at the interval of the guard, by the clock of the room, until it stops."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from postroom import Cleaning, Postroom, State
from postroom.testing import Events, FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import SOON, Logged, Sabotage, always

DAY = timedelta(days=1)
NEVER = timedelta(days=1)
GUARD = "guard:billing"


def purges(events: Events, box: str = GUARD) -> list[Any]:
    return [event for event in events.of("purge") if event.box.key == box]


def cleanup_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if f"box={GUARD} " in task.get_name()]


async def complete(guard: Any, *keys: str) -> None:
    for key in keys:
        async with guard.run(key) as run:
            assert run.acquired


@pytest.mark.req("CEB-029", "CEB-032", "CEB-034")
async def test_it_purges_at_its_interval_until_the_room_stops(
    open_room: OpenRoom, clock: FrozenClock, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    room = await open_room(clock, observers=[events], cleaning=Cleaning(interval=NEVER, reap_interval=SOON))
    guard = room.guard("billing", retention=DAY, cleanup_interval=SOON)
    await complete(guard, "1", "2")
    clock.advance(DAY - timedelta(seconds=1))
    await complete(guard, "young")
    await guard.try_begin("running")
    await room.start()
    await events.wait("purge", lambda event: event.result == 0, count=3)  # the clock of the machine goes on
    with Logged() as logged:
        clock.advance(1)
        await events.wait("purge", lambda event: event.result == 2)
    [record] = logged.saying("purged 2 done")
    assert record.levelno == logging.INFO
    assert f"box={GUARD}" in record.message
    assert {message.message_id for message in await guard.find()} == {"young", "running"}
    assert (await guard.get("running")).state is State.CLAIMED
    assert len(cleanup_tasks()) == 2  # of done and of dead records
    await room.stop()
    assert cleanup_tasks() == []
    assert events.of("reap") == []  # a late outcome still counts


@pytest.mark.req("CEB-041", "CEB-042")
async def test_one_call_sets_the_options_and_the_cleanup(
    open_room: OpenRoom, clock: FrozenClock, events: Events
) -> None:
    room = await open_room(clock, observers=[events])  # without handlers and options, a room cleans nothing else
    guard = room.guard("billing", retention=timedelta(days=14), cleanup_interval=SOON)
    await complete(guard, "1")
    clock.advance(timedelta(days=14))
    await room.start()
    await events.wait("purge", lambda event: event.result == 1)


@pytest.mark.req("CEB-029", "CEB-037")
async def test_the_interval_is_that_of_the_guard(open_room: OpenRoom, events: Events) -> None:
    room = await open_room(observers=[events], cleaning=Cleaning(interval=SOON, reap_interval=NEVER))
    hourly = room.guard("billing")
    assert hourly.box.retention.purge_interval == timedelta(hours=1)
    room.inbox(poll_interval=NEVER).handler("t")(always())
    await room.start()
    await events.wait("purge", count=5)  # of the inbox, at the interval of the room
    assert purges(events) == []
    assert len(purges(events, "inbox:inbox")) >= 5


@pytest.mark.req("CEB-030")
async def test_an_error_is_logged_and_the_cleanup_goes_on(
    open_room: OpenRoom, clock: FrozenClock, events: Events
) -> None:
    room = await open_room(clock, observers=[events], cleaning=Cleaning(interval=NEVER, restart_delay=SOON))
    guard = room.guard("billing", retention=DAY, cleanup_interval=SOON)
    await complete(guard, "1")
    clock.advance(DAY)
    sabotage = Sabotage(room, "purge")
    with Logged() as logged:
        await room.start()
        await sabotage.felt(4)  # done and dead have a task each
        sabotage.mend()
        await events.wait("purge", lambda event: event.result == 1)
    records = logged.saying("purge done failed")
    assert len(records) >= 2
    assert {record.levelno for record in records} == {logging.ERROR}
    assert all(f"box={GUARD}" in record.message for record in records)


@pytest.mark.req("CEB-029")
async def test_dead_records_go_too_unless_they_are_to_stay(still: Postroom, clock: FrozenClock) -> None:
    for name, options in (("both", {}), ("kept", {"dead_retention": None})):
        guard = still.guard(name, retention=DAY, **options)  # type: ignore[arg-type]
        assert await guard.fail(await guard.try_begin("1"), "bad card")
    clock.advance(DAY)
    assert await still.cleanup() == {"guard:both": (0, 0, 1), "guard:kept": (0, 0, 0)}


async def test_cleaning_that_is_switched_off_leaves_guards_alone(open_room: OpenRoom, events: Events) -> None:
    room = await open_room(observers=[events], cleaning=Cleaning(automatic=False))
    room.guard("billing", cleanup_interval=SOON)
    room.inbox(poll_interval=SOON).handler("t")(always())
    await room.start()
    await events.wait("claim", count=5)
    assert purges(events) == []
