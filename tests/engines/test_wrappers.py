"""The wrappers around the store of a room: they forward what the store has, and each adds one thing."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import Event, OwnerToken, Postroom
from postroom._connect import open_store
from postroom._room_store import ROOM_VERBS
from postroom._stores.for_room import wrap_for_room
from postroom._stores.memory import MemoryStore
from postroom._stores.modes import PlainStore
from postroom._stores.wrapper import StoreWrapper, innermost
from postroom.spi import (
    VERBS,
    Box,
    BoxLister,
    ClaimRequest,
    Draft,
    Exchanger,
    JoinStore,
    KeyStore,
    Migrator,
    QueueStore,
    Settlement,
    State,
    Transactor,
)
from tests.support import settled

BOX = Box("inbox", "inbox")
ADDED = {"exchange", "is_transient", "check_order", "is_observed", "emit"}
"""The verbs that every room's store has."""


def request() -> ClaimRequest:
    return ClaimRequest(OwnerToken.new(), timedelta(seconds=30), 1)


def verbs(store: Any) -> set[str]:
    return {name for name in ROOM_VERBS if hasattr(store, name)}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("url", ["memory://", "sqlite://", "postgresql://localhost/shop", "redis://localhost"])
async def test_a_wrapped_store_has_the_verbs_of_the_store(url: str, mode: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/room.db" if url == "sqlite://" else url
    store = open_store(url, mode=mode)
    wrapped = wrap_for_room(store, mode)
    assert innermost(wrapped) is store
    assert verbs(wrapped) == verbs(store) | ADDED
    assert isinstance(wrapped, Migrator) is isinstance(store, Migrator)
    assert isinstance(wrapped, Transactor) is isinstance(store, Transactor)
    await settled(store.close())


def test_a_verb_that_a_wrapper_does_not_change_costs_no_call() -> None:
    store = MemoryStore()
    wrapped: Any = StoreWrapper(store)
    assert wrapped.find == store.find
    assert wrapped.__dict__["find"] == store.find


def test_a_verb_that_is_not_used_costs_nothing() -> None:
    """`isinstance` and `inspect` find it in the class. Newer versions of Python do not look at the object there."""
    wrapped = wrap_for_room(MemoryStore(), "async")
    while isinstance(wrapped, StoreWrapper):
        assert wrapped.__dict__.keys().isdisjoint(VERBS)
        assert inspect.getattr_static(wrapped, "find", None) is not None
        assert inspect.getattr_static(wrapped, "migrate", None) is None
        wrapped = wrapped.inner


def test_every_verb_of_the_protocols_is_known() -> None:
    assert {name for name, verb in VERBS.items() if verb.takes_tx} == {
        *("put", "claim", "settle", "replay", "record", "mark", "cancel", "record_order"),
        *("start_join", "attach_steps", "report_step", "put_wait", "seal_join", "cancel_join"),
    }
    assert {name for name, verb in VERBS.items() if verb.reads} == {
        *("find", "counts", "boxes", "schema_version", "find_joins", "find_steps"),
    }
    assert {name for name, verb in VERBS.items() if not verb.is_async} == {
        *("transaction", "is_transient", "schema_script"),
    }


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "postgresql://localhost/shop"])
def test_one_part_of_the_sql_queue_has_the_program_of_a_verb(url: str) -> None:
    queue: Any = open_store(url, mode="sync")._queue
    for verb in VERBS.values():
        if verb.protocol in {QueueStore, KeyStore, JoinStore, Exchanger, BoxLister}:
            assert len([part for part in queue._parts if hasattr(part, verb.name)]) == 1, verb.name
    with pytest.raises(AttributeError, match="no part of the queue has a program 'unknown'"):
        queue.unknown  # noqa: B018 - it raises


def test_a_sync_store_that_waits_for_an_event_loop_is_an_error() -> None:
    class Waiting(MemoryStore):
        async def find(self, box: Box, which: Any) -> Any:
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="find of a sync store waits"):
        PlainStore(Waiting()).find(BOX, None)  # type: ignore[attr-defined]


def test_wrappers_of_one_store_are_on_one_database() -> None:
    """Also if the store does not know its database."""
    store, other = MemoryStore(), MemoryStore()
    store.addresses = other.addresses = frozenset()  # type: ignore[attr-defined]
    assert StoreWrapper(StoreWrapper(store)).addresses == StoreWrapper(store).addresses
    assert StoreWrapper(store).addresses.isdisjoint(StoreWrapper(other).addresses)


class TestEventsOfAnExchange:
    @pytest.fixture
    def events(self) -> list[Event]:
        return []

    @pytest.fixture
    async def room(self, tmp_path: Path, events: list[Event]) -> AsyncIterator[Postroom]:
        room = Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True, observers=[events.append])
        await room.store.put(BOX, [Draft("s", "1", "t", "p"), Draft("s", "2", "t", "p")])
        yield room
        await room.close()

    async def test_it_is_a_settle_and_a_claim(self, room: Postroom, events: list[Event]) -> None:
        settled, [first] = await room.store.exchange(BOX, [], request())
        assert settled == []
        assert [event.verb for event in events] == ["put", "claim"]
        settled, [second] = await room.store.exchange(BOX, [Settlement.done(first.claim)], request())
        assert [*settled] == [True]
        settle, claim = events[2:]
        assert (settle.verb, [*settle.result], settle.error) == ("settle", [True], None)
        assert (claim.verb, claim.result, claim.error) == ("claim", [second], None)
        assert settle.seconds == claim.seconds > 0

    async def test_a_failed_one_fails_both(self, room: Postroom, events: list[Event], tmp_path: Path) -> None:
        _, [message] = await room.store.exchange(BOX, [], request())
        events.clear()
        connection = sqlite3.connect(tmp_path / "room.db")
        connection.execute("DROP TABLE postroom_queue")
        connection.commit()
        connection.close()
        settlements, asked = [Settlement.done(message.claim)], request()
        with pytest.raises(sqlite3.OperationalError, match="no such table") as raised:
            await room.store.exchange(BOX, settlements, asked)
        settle, claim = events
        assert (settle.verb, settle.given, settle.result, settle.error) == ("settle", settlements, None, raised.value)
        assert (claim.verb, claim.given, claim.result, claim.error) == ("claim", asked, None, raised.value)
        assert settle.seconds > 0

    async def test_a_store_without_it_settles_and_then_claims(self, events: list[Event]) -> None:
        store = wrap_for_room(MemoryStore(), "async", [events.append])
        await store.put(BOX, [Draft("s", "1", "t", "p"), Draft("s", "2", "t", "p")])
        _, [first] = await store.exchange(BOX, [], request())
        assert first.claim is not None
        settled, [second] = await store.exchange(BOX, [Settlement.done(first.claim)], request())
        assert [*settled] == [True]
        assert [event.verb for event in events] == ["put", "claim", "settle", "claim"]
        assert second.message_id == "2"
        assert (await store.counts(BOX))[State.DONE] == 1


async def test_an_event_has_the_main_argument_however_it_was_passed() -> None:
    events: list[Event] = []
    async with Postroom("memory://", observers=[events.append]) as room:
        drafts = [Draft("shop", "1", "t", "x")]
        await room.store.put(BOX, drafts)
        await room.store.put(box=BOX, drafts=drafts)
    assert [event.given for event in events if event.verb == "put"] == [drafts, drafts]
