"""A ledger of effects: what was put into each store, and what its handlers did there."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count

import psycopg

from benchmarks.many.stores import Urls
from postroom import Message, Postroom, State, StoreNotFound
from postroom.sync import Postroom as SyncPostroom

EFFECTS = "CREATE TABLE IF NOT EXISTS effects (message_id TEXT NOT NULL)"
PAUSE_SECONDS = 0.002
"""The pause between two puts of a task."""
READ_EFFECTS = "SELECT message_id FROM effects"


@dataclass
class Balance:
    """The messages of all stores, after a room has stopped."""

    accepted: int = 0
    handled: int = 0
    waiting: int = 0
    claimed: int = 0
    """Messages that are still claimed, although no worker runs."""
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def is_correct(self) -> bool:
        return not self.lost and not self.repeated and self.accepted > 0


class Ledger:
    """Puts messages, and records their effects in the database of each store, in the transaction of the handler."""

    def __init__(self, urls: Urls) -> None:
        self.urls = urls
        self.accepted: dict[str, set[str]] = {key: set() for key in urls}
        self.handled: Counter[str] = Counter()
        """Handler calls so far, by store."""
        self._numbers = count()
        self._progress = asyncio.Condition()
        for url in urls.values():
            _execute(url, EFFECTS)

    def register(self, room: Postroom) -> None:
        """Registers the handler."""

        @room.outbox(concurrency=10).handler("m", transactional=True)
        async def handle(message: Message, tx: object) -> None:
            await _insert(tx, self.urls[message.store], message.message_id)
            self.handled[message.store] += 1
            async with self._progress:
                self._progress.notify_all()

    async def put(self, room: Postroom, key: str) -> bool:
        """Puts a message. Returns False if the store was removed from the room or failed."""
        message_id = f"{key}-{next(self._numbers)}"
        try:
            await room.router.outbox(key).enqueue("m", {}, message_id=message_id)
        except StoreNotFound:
            return False
        self.accepted[key].add(message_id)
        return True

    async def keep_putting(self, room: Postroom, keys: Callable[[], Collection[str]], ended: asyncio.Event) -> None:
        """Puts into one of these stores after the other, until the event is set. A store that fails is passed over."""
        while not ended.is_set():
            try:
                await self.put(room, random.choice(list(keys())))
            except (OSError, psycopg.Error, sqlite3.Error, TimeoutError):
                pass  # not accepted: it may be stored all the same
            except Exception as error:
                if not type(error).__module__.startswith("asyncpg"):
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    async def wait_for(self, keys: Iterable[str], more: int, seconds: float = 120) -> None:
        """Waits until handlers were called so many times more in each of these stores."""
        wanted = {key: self.handled[key] + more for key in keys}
        async with asyncio.timeout(seconds), self._progress:
            await self._progress.wait_for(lambda: all(self.handled[key] >= least for key, least in wanted.items()))

    async def wait_for_any(self, more: int, seconds: float = 120) -> None:
        """Waits until handlers were called so many times more, in any store."""
        wanted = self.handled.total() + more
        async with asyncio.timeout(seconds), self._progress:
            await self._progress.wait_for(lambda: self.handled.total() >= wanted)

    def balance(self) -> Balance:
        """Compares what was accepted with the effects and with what waits in each database."""
        total = Balance()
        for key, url in self.urls.items():
            effects = Counter(message_id for (message_id,) in _execute(url, READ_EFFECTS))
            with SyncPostroom(url) as room:
                left = room.outbox().find(states=[State.WAITING, State.CLAIMED], limit=100_000)
            here = Counter(message.message_id for message in left)
            accepted = self.accepted[key]
            total.accepted += len(accepted)
            total.handled += effects.total()
            total.waiting += here.total()
            total.claimed += sum(message.state is State.CLAIMED for message in left)
            total.lost += sorted(accepted - effects.keys() - here.keys())
            total.repeated += [each for each, times in (effects + here).items() if times > 1]
        return total

    async def drain(self) -> None:
        """Handles what waits, in all stores."""
        room = Postroom(stores=self.urls)
        self.register(room)
        await room.drain()
        await room.close()


async def _insert(tx: object, url: str, message_id: str) -> None:
    execute = tx.execute  # type: ignore[attr-defined]
    if url.startswith("sqlite"):
        await execute("INSERT INTO effects VALUES (?)", (message_id,))
    else:
        await execute("INSERT INTO effects VALUES ($1)", message_id)


def _execute(url: str, statement: str) -> list[tuple[str]]:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
    with psycopg.connect(url, autocommit=True, application_name="benchmark") as session:
        cursor = session.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
