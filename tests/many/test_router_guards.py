"""Guards of one store of a room with many: `room.router.guard(key, name)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom import (
    ArgumentTypeError,
    BeginStatus,
    FeatureMissing,
    GuardBusy,
    Postroom,
    State,
    StoreKeyMissing,
    StoreNotFound,
)
from postroom.sync import Postroom as SyncPostroom
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, mixed
from tests.support import settled

BOTH = pytest.mark.parametrize("kind", [Postroom, SyncPostroom])


@pytest.mark.req("C-60")
async def test_each_store_has_its_records(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls)
    calls: list[str] = []
    for key in KEYS:

        @room.router.guard(key, "billing").once("message_id", handler="charge")
        async def charge(message_id: str, *, store: str = key) -> None:
            calls.append(store)

        await charge("1")
        await charge("1")
    assert calls == list(KEYS)
    for url in urls.values():  # and in the database itself
        async with Postroom(url) as alone:
            record = await alone.guard("billing").get("1", handler="charge")
            assert (record.state, record.deliveries) == (State.DONE, 1)


@BOTH
def test_it_is_made_once_with_the_options_of_the_room(kind: Any) -> None:
    room = kind(stores={"acme": "memory://", "bolt": "memory://"})
    policy = room.guard("billing", mode="mark_before", lease_seconds=99).policy
    guard = room.router.guard("acme", "billing")
    assert guard is room.router.guard("acme", "billing")
    assert guard is not room.router.guard("bolt", "billing")
    assert guard is not room.router.guard("acme", "other")
    assert (guard.policy, guard.box.work.lease.total_seconds()) == (policy, 99)


@BOTH
async def test_the_guard_of_the_room_has_no_store(kind: Any) -> None:
    room = kind(stores={"acme": "memory://"})
    with pytest.raises(StoreKeyMissing, match=r"room\.router\.guard"):
        await settled(room.guard("billing").try_begin("1"))
    with pytest.raises(StoreNotFound, match="no store 'nobody'"):
        room.router.guard("nobody", "billing")
    with pytest.raises(ArgumentTypeError, match="str or a UUID"):
        room.router.guard(7, "billing")


async def test_a_store_that_cannot_do_it_is_refused(open_room: OpenRoom, tmp_path: Path) -> None:
    room = open_room(mixed(tmp_path))
    room.guard("billing", mode="transactional")
    for key in ("cache", "ram"):
        with pytest.raises(FeatureMissing, match="transactional"):
            room.router.guard(key, "billing")
    effects = room.router.outbox("file", "effects")

    @room.router.guard("file", "billing").once("message_id")
    async def charge(message_id: str, *, tx: Any = None) -> None:
        await effects.enqueue("charged", message_id, tx=tx)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await charge("1")
    assert await effects.find() == []


async def test_a_key_is_busy_in_its_store_only(open_room: OpenRoom, tmp_path: Path) -> None:
    room = open_room(mixed(tmp_path))
    for key in ("file", "server", "cache", "ram"):
        guard = room.router.guard(key, "billing")
        begun = await guard.try_begin("1")
        assert begun.status is BeginStatus.ACQUIRED
        with pytest.raises(GuardBusy):
            async with guard.run("1"):
                pytest.fail("another caller has the key")
        assert await guard.mark_processed(begun, result={"in": key})
        assert (await guard.try_begin("1")).result == {"in": key}
