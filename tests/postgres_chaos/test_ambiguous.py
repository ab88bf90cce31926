"""The server has committed, and its reply is lost: a retry neither loses the change nor makes it twice.

The proxy forwards a request, lets the server act, and cuts the connection instead of forwarding the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from tools.servers.postgres import PostgresServer
from tools.servers.proxy import Proxy

from postroom import Message, NewMessage, Postroom, State
from tests.postgres import with_driver
from tests.postgres_chaos.worker import Options, Worker
from tests.postgres_chaos.workers import effects

COMMIT = (b"COMMIT\x00", b"COMMIT;")
"""As drivers say it; not READ COMMITTED."""

pytestmark = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])


class Place:
    """A room that speaks through a proxy, and one that does not."""

    def __init__(self, server: PostgresServer, proxy: Proxy, database: str, driver: str) -> None:
        self.proxy = proxy
        self.url = server.url(database)
        self.through = with_driver(self.url.replace(f":{server.port}/", f":{proxy.port}/"), driver)
        self.room = Postroom(self.through)
        self.watcher = Postroom(self.url)

    def lose_reply(self, *marks: bytes) -> Any:
        """To the next request that contains one of these."""
        return self.proxy.cut_after(lambda request: any(mark in request for mark in marks))

    async def close(self) -> None:
        await self.room.close()
        await self.watcher.close()


def uuid_marks(owner: UUID) -> tuple[bytes, ...]:
    """How an owner may look in a request."""
    return owner.bytes, str(owner).encode(), owner.hex.encode()


@pytest.fixture
async def place(server: PostgresServer, database: str, driver: str) -> AsyncIterator[Place]:
    with Proxy(server.host, server.port) as proxy:
        made = Place(server, proxy, database, driver)
        yield made
        await made.close()


def messages(*ids: str) -> list[NewMessage]:
    return [NewMessage("t", 1, "s", id_) for id_ in ids]


@pytest.mark.parametrize("ids", [["only-one"], ["one", "two", "three"]])
async def test_a_put_finds_its_own_message(place: Place, ids: list[str]) -> None:
    box = place.room.inbox()
    await box.enqueue_many(messages("warm"))
    lost = place.lose_reply(*([b"only-one"] if ids == ["only-one"] else COMMIT))  # one is a transaction by itself
    receipts = await box.enqueue_many(messages(*ids))
    assert lost.is_set()
    assert [receipt.status for receipt in receipts] == ["duplicate"] * len(ids)
    assert (await place.watcher.inbox().counts())[State.WAITING] == 1 + len(ids)
    found = await place.watcher.inbox().find()
    assert [receipt.id for receipt in receipts] == [message.id for message in found[1:]]


async def test_concurrent_puts_each_return_their_own_receipt(place: Place) -> None:
    box = place.room.inbox()
    await box.enqueue_many(messages("warm"))
    lost = place.lose_reply(*COMMIT)
    receipts = await asyncio.gather(*(box.enqueue("t", 1, source="s", message_id=str(n)) for n in range(20)))
    assert lost.is_set()
    assert [receipt.message_id for receipt in receipts] == [str(n) for n in range(20)]
    assert (await place.watcher.inbox().counts())[State.WAITING] == 21


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_an_ack_is_kept_once_and_says_that_the_claim_is_gone(place: Place, order: Any) -> None:
    box, owner = place.room.inbox("acked", order=order), uuid4()
    await box.enqueue_many([NewMessage("t", 1, "s", str(n), group="g") for n in range(3)])
    claimed = await box.claim(owner, batch_size=2)
    lost = place.lose_reply(*(uuid_marks(owner) if order == "none" else COMMIT))
    assert await box.ack(owner, claimed) == [False, False]
    assert lost.is_set()
    counts = await place.watcher.inbox("acked", order=order).counts()
    assert (counts[State.DONE], counts[State.WAITING]) == (2, 1)
    assert [message.message_id for message in await box.claim(owner)] == ["2"]  # the next in line was woken


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_what_a_lost_claim_took_comes_again_when_its_lease_ends(place: Place, order: Any) -> None:
    box, lost_owner, owner = place.room.inbox("claimed", order=order), uuid4(), uuid4()
    await box.enqueue_many([NewMessage("t", n, "s", str(n), group=str(n)) for n in range(4)])
    await box.claim(owner, 60, 1)
    lost = place.lose_reply(*(uuid_marks(lost_owner) if order == "none" else COMMIT))
    # The first try claimed a message that no worker knows of; the second claims another.
    [second] = await box.claim(lost_owner, 1.0, 1)
    assert await box.renew(lost_owner, [second], 60) == [True]  # it must not come back with the other
    assert lost.is_set()
    counts = await place.watcher.inbox("claimed", order=order).counts()
    assert (counts[State.CLAIMED], counts[State.WAITING]) == (3, 1)
    found: list[str] = []
    async with asyncio.timeout(10):
        while len(found) < 2:  # what waits at once, what was lost after a second
            found += [message.message_id for message in await box.claim(owner, 60, 10)]
            await asyncio.sleep(0.05)
    assert second.message_id not in found


async def test_a_transactional_handler_has_its_effect_once(place: Place, driver: str, tmp_path: Any) -> None:
    """Its COMMIT is the one whose reply is lost."""
    options = Options(place.through, str(tmp_path / "log"), boxes=("free",), lease=1.0)
    with (tmp_path / "log").open("w") as log:
        worker = Worker(options, 1, log)
        lost: list[Any] = []
        write = worker._write

        async def write_and_lose(tx: Any, box: str, message: Message[int]) -> None:
            await write(tx, box, message)
            if not lost:
                lost.append(place.lose_reply(*COMMIT))

        worker._write = write_and_lose  # type: ignore[method-assign]
        box = place.watcher.inbox("free")
        await box.enqueue_many([NewMessage("t", n, "s", str(n), group="g") for n in range(5)])
        async with worker.room:
            await until(lambda: all_done(box, 5))
    assert lost[0].is_set()
    assert sorted(effects(place.url).lines["free"]["g"]) == [0, 1, 2, 3, 4]


async def test_a_workers_round_is_neither_lost_nor_done_twice(place: Place, driver: str) -> None:
    """Settle and claim in one statement: the next round settles nothing twice, and goes on."""
    handled: list[int] = []
    rooms_own = place.room.inbox("rounds", batch_size=5, lease_seconds=3.0, poll_interval=timedelta(milliseconds=10))
    lost: list[Any] = []

    @rooms_own.handler("t")
    async def handle(message: Message[int]) -> None:
        handled.append(message.payload)
        if len(handled) == 3:
            assert message.claim is not None
            lost.append(place.lose_reply(*uuid_marks(message.claim.owner)))

    box = place.watcher.inbox("rounds")
    await box.enqueue_many([NewMessage("t", n, "s", str(n)) for n in range(30)])
    await place.room.start()
    await until(lambda: all_done(box, 30))
    await place.room.stop()
    assert lost[0].is_set()
    assert set(handled) == set(range(30))
    assert len(handled) <= 35  # what a lost claim took, and nothing else, came again


async def all_done(box: Any, count: int) -> bool:
    counts = await box.counts()
    return bool(counts[State.DONE] == count and not counts[State.WAITING] and not counts[State.CLAIMED])


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)
