"""The table of docs/explanation/twice-or-never.md: what each mode does if the store fails or has forgotten a key.

The other rows are in test_guard_runs.py, and in test_guard_processes.py and test_guard_kills.py of tests/scenarios.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, get_args

import pytest

from postroom import BeginStatus, GuardBusy, State
from postroom._boxes.guard.options import Mode
from postroom.testing import FrozenClock
from tests.support import settled

MODES: tuple[Mode, ...] = get_args(Mode)


class Charge:
    """A guarded handler. A transactional one writes to an outbox; the others only record their calls."""

    def __init__(self, room: Any, mode: Mode, **options: Any) -> None:
        if mode == "transactional" and not room.features.transactional:
            pytest.skip("this store has no transactions")
        self.calls: list[str] = []
        self.guard = room.guard("billing", mode=mode, **options)
        self._is_transactional = mode == "transactional"
        self._effects = room.outbox("effects")
        is_async = inspect.iscoroutinefunction(type(self.guard).try_begin)
        self.deliver = self.guard.once("key", handler="charge")(self._handle_async if is_async else self._handle)

    async def _handle_async(self, key: str, tx: Any = None) -> None:
        await settled(self._handle(key, tx))

    def _handle(self, key: str, tx: Any = None) -> Any:
        self.calls.append(key)
        return self._effects.enqueue("charged", {"key": key}, tx=tx) if self._is_transactional else None

    async def effects(self) -> int:
        """How often the handler has taken effect."""
        if self._is_transactional:
            return int((await settled(self._effects.counts()))[State.WAITING])
        return len(self.calls)


@contextmanager
def broken(room: Any, *verbs: str) -> Iterator[None]:
    """Makes verbs of the store of a room raise, as if its server were away."""

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("the store is away")

    for verb in verbs:
        setattr(room.store, verb, fail)
    try:
        yield
    finally:
        for verb in verbs:
            delattr(room.store, verb)


@asynccontextmanager
async def opened(run: Any) -> AsyncIterator[Any]:
    """Opens a run of either mode."""
    if hasattr(run, "__aenter__"):
        async with run as entered:
            yield entered
    else:
        with run as entered:
            yield entered


@pytest.mark.parametrize("mode", MODES)
async def test_two_deliveries_at_the_same_time(room: Any, mode: Mode) -> None:
    charge = Charge(room, mode)
    if mode == "mark_after":
        async with opened(charge.guard.run("1", handler="charge")) as first:
            assert first.acquired
            await settled(charge.deliver("1"))
        assert charge.calls == ["1"]
        return
    assert (await settled(charge.guard.try_begin("1", handler="charge"))).status is BeginStatus.ACQUIRED
    if mode == "mark_before":
        assert await settled(charge.deliver("1")) is None
    else:
        with pytest.raises(GuardBusy):
            await settled(charge.deliver("1"))
    assert charge.calls == []


@pytest.mark.parametrize("mode", MODES)
async def test_while_the_store_is_down_the_call_raises_and_the_handler_does_not_run(room: Any, mode: Mode) -> None:
    charge = Charge(room, mode)
    with broken(room, "begin", "find"), pytest.raises(ConnectionError, match="away"):
        await settled(charge.deliver("1"))
    assert charge.calls == []
    await settled(charge.deliver("1"))
    await settled(charge.deliver("1"))
    assert charge.calls == ["1"]
    assert await charge.effects() == 1


def without_lease_end(mode: Mode) -> bool:
    return mode in {"mark_before", "mark_after"}


@pytest.mark.parametrize("mode", MODES)
async def test_an_outcome_that_cannot_be_stored(room: Any, mode: Mode, clock: FrozenClock) -> None:
    charge = Charge(room, mode)
    with broken(room, "settle", "mark"), pytest.raises(ConnectionError, match="away"):
        await settled(charge.deliver("1"))
    assert charge.calls == ["1"]
    assert not await settled(charge.guard.is_processed("1", handler="charge"))
    if not without_lease_end(mode):
        clock.advance(29)
        with pytest.raises(GuardBusy):
            await settled(charge.deliver("1"))
        clock.advance(2)
    await settled(charge.deliver("1"))
    await settled(charge.deliver("1"))
    if mode == "mark_before":
        assert charge.calls == ["1"]
        assert [record.message_id for record in await settled(charge.guard.unfinished())] == ["1"]
    else:
        assert charge.calls == ["1", "1"]
        assert await charge.effects() == (1 if mode == "transactional" else 2)


@pytest.mark.parametrize("mode", ["lease", "mark_before"])
async def test_an_error_is_raised_even_if_its_outcome_cannot_be_stored(
    room: Any, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    guard = room.guard("billing", mode=mode)
    with broken(room, "settle"), pytest.raises(ZeroDivisionError):
        async with opened(guard.run("1")):
            raise ZeroDivisionError
    [record] = [each for each in caplog.records if "could not be stored" in each.message]
    assert (record.levelno, "ConnectionError" in record.message) == (logging.ERROR, True)
    assert [record.message_id for record in await settled(guard.unfinished())] == ["1"]


@pytest.mark.req("CEB-031", "CEB-036", "CEB-052", "CEB-053", "KOAN-031")
@pytest.mark.parametrize("mode", MODES)
async def test_a_key_that_was_purged_runs_again(room: Any, mode: Mode, clock: FrozenClock) -> None:
    charge = Charge(room, mode)
    await settled(charge.deliver("1"))
    clock.advance(timedelta(days=7).total_seconds() - 1)
    assert await settled(charge.guard.purge()) == 0
    await settled(charge.deliver("1"))
    assert charge.calls == ["1"]
    clock.advance(1)
    assert await settled(charge.guard.purge()) == 1
    await settled(charge.deliver("1"))
    assert charge.calls == ["1", "1"]
