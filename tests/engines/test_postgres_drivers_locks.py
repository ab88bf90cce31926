"""Puts that share a transaction do not wait together for a lock that only one of them needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import asyncpg
import pytest

from postroom._connect import open_store
from postroom._stores.coalesced import MAX_SLOW, SIZES, Coalescer, Sharing
from postroom.spi import Box, Draft, Filter, Receipt
from tests.postgres import clean_database, with_driver

BOX = Box("inbox", "shared")
LONG = 20.0
"""Seconds: who waits so long waits for the end of a transaction that does not end before."""

pytestmark = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])


def draft(message_id: str) -> Draft:
    return Draft("s", message_id, "t", "x")


class Place:
    """A store, its puts, and another connection with a transaction that stays open."""

    def __init__(self, driver: str, holder: Any) -> None:
        self.store: Any = open_store(with_driver(clean_database(), driver), mode="async", notify=False)
        self.holder = holder
        self.round_trips: list[str] = []
        """The statements that were sent, without their parameters."""
        self._driver = self.store._driver
        self.coalescer = Coalescer(
            self._put,
            SIZES["put"],
            Sharing(
                is_shared_error=self._driver.is_transient, limits_locks=True, is_lock_timeout=self._driver.is_locked
            ),
        )
        self.sizes: list[int] = []
        """Of the puts that were made."""
        self._more = asyncio.Condition()

    async def _put(self, box: Box, drafts: Sequence[Draft], *, lock_timeout: float | None = None) -> list[Receipt]:
        self.sizes.append(len(drafts))
        async with self._more:
            self._more.notify_all()
        put = partial(self._driver.engine.make_queue().put, box, drafts)
        receipts: list[Receipt] = await self._driver.transact(put, lock_timeout=lock_timeout)
        return receipts

    async def puts(self, count: int) -> None:
        """Until so many have begun."""
        async with asyncio.timeout(LONG), self._more:
            await self._more.wait_for(lambda: len(self.sizes) >= count)

    def record_round_trips(self) -> None:
        adapter: Any = self._driver._pool.adapter
        fetch, execute = adapter.fetch, adapter.execute

        class Noting:
            async def fetch(_, connection: Any, text: str, parameters: Any) -> Any:  # noqa: N805 - `self` is the place
                self.round_trips.append(text.split(maxsplit=1)[0])
                return await fetch(connection, text, parameters)

            async def execute(_, connection: Any, text: str) -> None:  # noqa: N805
                self.round_trips.append(text)
                await execute(connection, text)

        self._driver._pool.adapter = Noting()

    def start(self, *ids: str) -> list[asyncio.Task[str]]:
        """Puts of one message each: they go together."""

        async def put(id_: str) -> str:
            [receipt] = await self.coalescer.call(BOX, [draft(id_)])
            return str(receipt.status)

        return [asyncio.create_task(put(id_)) for id_ in ids]

    async def hold(self, *ids: str) -> Any:
        """Puts messages in a transaction that stays open. A put of the same message waits for its end."""
        transaction = self.holder.transaction()
        await transaction.start()
        for id_ in ids:
            await self.store.put(BOX, [draft(id_)], tx=self.holder)
        return transaction


async def results_of(tasks: Sequence[asyncio.Task[str]]) -> list[str]:
    async with asyncio.timeout(LONG):
        return list(await asyncio.gather(*tasks))


@pytest.fixture
async def place(driver: str) -> AsyncIterator[Place]:
    holder = await asyncpg.connect(clean_database())
    made = Place(driver, holder)
    await made.store.counts(BOX)
    yield made
    await holder.close()
    await made.store.close()


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_only_who_needs_the_lock_waits_for_it(place: Place, ending: str) -> None:
    transaction = await place.hold("held")
    [*others, blocked] = place.start("a", "b", "c", "held")
    assert await results_of(others) == ["new"] * 3
    await place.puts(6)
    assert place.sizes == [4, 1, 1, 1, 1, 1]  # together, each in a hurry, and the last one to the end
    assert not blocked.done()
    await getattr(transaction, ending)()
    assert await results_of([blocked]) == ["duplicate" if ending == "commit" else "new"]


async def test_a_crowd_that_waits_does_not_hold_up_who_comes_later(place: Place) -> None:
    held = [f"held {number}" for number in range(3 * MAX_SLOW)]
    transaction = await place.hold(*held)
    blocked = place.start(*held)
    assert await results_of(place.start(*(f"free {number}" for number in range(20)))) == ["new"] * 20
    assert await results_of(place.start("later")) == ["new"]
    assert await results_of(place.start("later", "much later")) == ["duplicate", "new"]
    assert not any(task.done() for task in blocked)
    await transaction.commit()
    assert await results_of(blocked) == ["duplicate"] * len(held)


async def test_who_has_gone_is_not_put(place: Place) -> None:
    """It waits for its turn to wait, and nothing of it has been sent."""
    held = [f"held {number}" for number in range(MAX_SLOW + 1)]
    transaction = await place.hold(*held)
    blocked = place.start(*held)
    await place.puts(1 + len(held) + MAX_SLOW)  # together, each in a hurry, most to the end
    [gone] = [waiting.items[0].message_id for waiting in place.coalescer._blocked]
    blocked[held.index(gone)].cancel()
    await transaction.rollback()
    left = [task for task, id_ in zip(blocked, held, strict=True) if id_ != gone]
    assert await results_of(left) == ["new"] * MAX_SLOW
    assert {message.message_id for message in await place.store.find(BOX, Filter())} == set(held) - {gone}


async def test_the_limit_costs_no_round_trip_and_ends_with_the_transaction(place: Place) -> None:
    place.record_round_trips()
    assert await results_of(place.start("a", "b", "c")) == ["new"] * 3
    [begin, arrive, commit] = place.round_trips
    assert (arrive, commit) == ("WITH", "COMMIT")
    assert begin.endswith("; SET LOCAL lock_timeout = 100")
    checkout = await place._driver._pool.acquire()
    assert await _lock_timeout(checkout.connection) == "0"
    await place._driver._pool.release(checkout)


async def _lock_timeout(connection: Any) -> str:
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return str(await connection.fetchval("SHOW lock_timeout"))
    cursor = await connection.execute("SHOW lock_timeout")
    return str((await cursor.fetchone())[0])
