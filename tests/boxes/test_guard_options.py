"""The options of a guard and their defaults, and what its records contain."""

from __future__ import annotations

import inspect
import logging
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, GuardKey, State
from postroom.testing import FrozenClock
from tests.support import settled


class Event(NamedTuple):
    """The attributes of a CloudEvent that a consumer gets with each delivery."""

    id: str
    type: str


def guarded(guard: Any, function: Any, **options: Any) -> Any:
    """Decorates a function of the mode of the guard, which keeps its name."""
    if not inspect.iscoroutinefunction(type(guard).try_begin):
        return guard.once(**options)(function)

    async def in_task(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    in_task.__qualname__, in_task.__signature__ = function.__qualname__, inspect.signature(function)  # type: ignore[attr-defined]
    return guard.once(**options)(in_task)


@pytest.mark.req("CEB-036", "CEB-037", "CEB-038", "CEB-039", "KOAN-031")
async def test_the_defaults(room: Any) -> None:
    guard = room.guard("billing")
    policy, box = guard.policy, guard.box
    assert (policy.mode, policy.scope, policy.enabled, policy.release_on_error) == ("lease", "handler", True, False)
    assert (box.retention.done_age, box.retention.dead_age) == (timedelta(days=7), timedelta(days=7))
    assert (box.retention.age_from, box.retention.purge_interval) == ("completed_at", timedelta(hours=1))
    assert box.work.lease == timedelta(seconds=30)


@pytest.mark.req("CEB-042", "CEB-053", "KOAN-031")
async def test_another_retention(room: Any, clock: FrozenClock) -> None:
    guard = room.guard("billing", retention=timedelta(days=14), cleanup_interval=timedelta(minutes=1))
    assert guard.box.retention.purge_interval == timedelta(minutes=1)
    begun = await settled(guard.try_begin("1"))
    clock.advance(timedelta(days=3).total_seconds())
    assert await settled(guard.mark_processed(begun))
    clock.advance(timedelta(days=14).total_seconds() - 1)
    assert await settled(guard.purge()) == 0  # the age counts from the completion
    clock.advance(1)
    assert await settled(guard.purge()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"retention": timedelta(days=-1)},
        {"retention": "7 days"},
        {"cleanup_interval": timedelta()},
        {"cleanup_interval": None},
        {"lease_seconds": 0},
        {"enabled": "no"},
        {"completion_timeout": timedelta()},
        {"mode": "mark_after", "keep_results": True},
    ],
)
async def test_bad_options_are_refused(room: Any, options: dict[str, Any]) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError)):
        room.guard("billing", **options)


@pytest.mark.req("CEB-009", "CEB-010", "CEB-011", "CEB-012", "CEB-022")
async def test_a_record_has_the_id_the_type_the_time_and_the_handler(room: Any, clock: FrozenClock) -> None:
    guard = room.guard("notes")
    seen: list[str] = []

    def add_note(event: Event) -> None:
        clock.advance(5)
        seen.append(event.id)

    add = guarded(guard, add_note, key=lambda event: event.id, topic="notes.added", handler="add_note")
    began = clock.now()
    await settled(add(Event("evt-1", "notes.added")))
    record = await settled(guard.get("evt-1", handler="add_note"))
    assert (record.message_id, record.topic, record.source) == ("evt-1", "notes.added", "add_note")
    assert (record.first_seen, record.completed_at) == (began, clock.now())
    assert (record.state, seen) == (State.DONE, ["evt-1"])


@pytest.mark.req("CEB-022")
async def test_a_begin_takes_the_type_of_each_message(room: Any) -> None:
    guard = room.guard("notes")
    for event in (Event("1", "notes.added"), Event("2", "notes.removed")):
        await settled(guard.try_begin(event.id, topic=event.type))
    assert {record.message_id: record.topic for record in await settled(guard.find())} == {
        "1": "notes.added",
        "2": "notes.removed",
    }


class Notes:
    """A class with a handler."""

    @staticmethod
    def add(key: str) -> None:
        """Adds a note."""


@pytest.mark.req("CEB-023")
async def test_the_name_of_a_handler_is_that_of_its_class_and_function(room: Any) -> None:
    guard = room.guard("notes")
    await settled(guarded(guard, Notes.add, key="key")("1"))
    [record] = await settled(guard.find())
    assert (record.source, record.topic) == ("Notes.add", "Notes.add")


async def test_a_composed_key_is_the_id_of_the_record(room: Any) -> None:
    guard, key = room.guard("notes"), GuardKey("main", "billing", "notes/added", "a:b")
    await settled(guard.try_begin(key))
    [record] = await settled(guard.find())
    assert record.message_id == "main:billing:notes%2Fadded:a%3Ab"
    assert GuardKey.parse(record.message_id) == key


@pytest.mark.req("CEB-019", "CEB-024", "CEB-025")
async def test_what_is_logged_of_a_delivery_and_of_its_duplicate(room: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="postroom")
    guard = room.guard("notes")
    add = guarded(guard, Notes.add, key="key")
    await settled(add("evt-1"))
    first = {(each.levelno, each.message.split(maxsplit=1)[0].rstrip(":")) for each in caplog.records}
    assert {(logging.DEBUG, "acquired"), (logging.DEBUG, "processed")} <= first
    assert all(each.levelno == logging.DEBUG for each in caplog.records)
    caplog.clear()
    await settled(add("evt-1"))
    [duplicate] = [each for each in caplog.records if each.levelno == logging.INFO]
    assert "evt-1" in duplicate.message


async def test_a_cleanup_does_not_end_leases(room: Any, clock: FrozenClock) -> None:
    """Until another caller takes the key, a late outcome counts."""
    if not hasattr(room, "cleanup"):
        pytest.skip("only an async room cleans")
    guard = room.guard("billing", lease_seconds=10)
    begun = await settled(guard.try_begin("1"))
    clock.advance(11)
    await room.cleanup()
    assert await settled(guard.mark_processed(begun))
