"""Postroom as a program uses it: rooms, an inbox, handlers and `drain()`. Deduplication is on, as always."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common.subject import Span, Subject, Tally
from benchmarks.workload import BOX, SOURCE, TOPIC, Item
from postroom import Inbox, Message, NewMessage, Postroom


class Ours(Subject):
    """With a handler that is called for each message."""

    lists = False

    async def install(self) -> None:
        await self._room.migrate()

    async def open(self) -> None:
        self._tally = Tally(None)
        self._handled: Callable[[], None] | None = None
        self._room = Postroom(self.url)
        self._inbox = self._box(self._room)
        self._workers: dict[int, Postroom] = {}

    def _box(self, room: Postroom, **options: Any) -> Inbox:
        return room.inbox(BOX, order="fifo" if self.groups else "none", **options)

    async def send_one(self, item: Item) -> None:
        await self._inbox.enqueue(
            TOPIC, item.payload, source=SOURCE, message_id=item.message_id, group=self._group(item)
        )

    async def send_bulk(self, items: list[Item]) -> None:
        await self._inbox.enqueue_many(
            [
                NewMessage(TOPIC, item.payload, source=SOURCE, message_id=item.message_id, group=self._group(item))
                for item in items
            ]
        )

    def _group(self, item: Item) -> str | None:
        """Adjacent messages are in different groups."""
        return f"group-{int(item.message_id[-12:]) % self.groups}" if self.groups else None

    async def drain(self, batch: int, expected: int | None) -> Span:
        room = await self._worker(batch)
        self._tally = Tally(expected)
        gc.collect()
        began = time.monotonic()
        await room.drain()
        return Span(began, time.monotonic(), self._tally.count)

    async def take(self, batch: int, count: int) -> Span:
        """A part of a backlog: the worker runs until `count` are handled."""
        room = await self._worker(batch)
        self._tally = tally = Tally(count)
        gc.collect()
        began = time.monotonic()
        await room.start()
        await tally.wait()
        span = Span(began, tally.last, tally.count)
        await room.stop()
        return span

    async def serve(self, handled: Callable[[], None]) -> None:
        self._handled = handled
        self._serving = await self._worker(50)
        await self._serving.start()

    async def stop_serving(self) -> None:
        await self._serving.stop()
        self._handled = None

    async def _worker(self, batch: int) -> Postroom:
        """Returns a separate room for each batch size, which is an option of a box."""
        if batch not in self._workers:
            room = self._workers[batch] = Postroom(self.url)
            inbox = self._box(room, batch_size=batch)
            if self.lists:
                inbox.handler(TOPIC, batch=batch)(self._handle_list)
            else:
                inbox.handler(TOPIC)(self._handle)
            await inbox.find(limit=1)  # connects
        return self._workers[batch]

    async def _handle(self, message: Message[Any]) -> None:
        self._tally.add()
        if self._handled is not None:
            self._handled()

    async def _handle_list(self, messages: list[Message[Any]]) -> None:
        self._tally.add(len(messages))

    async def close(self) -> None:
        await asyncio.gather(*(room.close() for room in (self._room, *self._workers.values())))


class OursInLists(Ours):
    """With a handler that is called for each batch (`batch=`)."""

    lists = True
