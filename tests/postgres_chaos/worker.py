"""Workers in a process of their own: python -m tests.postgres_chaos.worker OPTIONS

OPTIONS is JSON, the fields of `Options`. The process says "ready" when its rooms have started, and goes on until it is
killed, or its stdin ends; then it stops in order. What it claimed is in its log: a line for each claim.

The boxes, all in one database:

* `exact`, FIFO: a transactional handler writes an effect and sends a message to `sent` in the same transaction.
* `sent`, FIFO, an outbox: an ordinary handler writes an effect by itself.
* `free`, unordered: a transactional handler writes an effect.
* `plain`, unordered: an ordinary handler that only counts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from postroom import Backoff, Cleaning, Message, Outcome, Postroom
from postroom._kernel.observer import Event

BOXES = ("exact", "free", "plain")
"""Those that are fed; `sent` is fed by `exact`."""


@dataclass(frozen=True)
class Options:
    """The options of a process."""

    url: str
    log: str
    seed: int = 1
    workers: int = 1
    """Rooms, each with workers of its own."""
    boxes: tuple[str, ...] = ("exact", "sent", "free", "plain")
    lease: float = 30.0
    trouble: float = 0.0
    """The share of handler calls that fail, are put off, or outlast their lease."""
    batch_size: int = 10
    extra: dict[str, Any] = field(default_factory=dict)
    """More options for rooms."""

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Options:
        return cls(**json.loads(text))


def box_options(options: Options, name: str) -> Any:
    return {
        "order": "fifo" if name in {"exact", "sent"} else "none",
        "lease_seconds": options.lease,
        "batch_size": options.batch_size,
        "concurrency": 2,
        "max_attempts": 10_000,
        "backoff": Backoff.constant(0.005),
        "poll_interval": timedelta(milliseconds=10),
        "max_poll_interval": timedelta(milliseconds=200),
    }


def open_box(room: Any, options: Options, name: str) -> Any:
    open_it = room.outbox if name == "sent" else room.inbox
    return open_it(name, **box_options(options, name))


class Worker:
    """One room with its handlers."""

    def __init__(self, options: Options, number: int, log: TextIO) -> None:
        self.options, self._log = options, log
        self.chance = random.Random(f"{options.seed} {number}")
        self.room = Postroom(
            options.url,
            cleaning=Cleaning(reap_interval=timedelta(milliseconds=200)),
            observers=[self._note],
            **options.extra,
        )
        handlers: dict[str, Any] = {"exact": self.once, "sent": self.send, "free": self.effect, "plain": self.count}
        for name in options.boxes:
            box = open_box(self.room, options, name)
            box.handler("t", transactional=name in {"exact", "free"})(handlers[name])

    def _note(self, event: Event) -> None:
        """What was claimed, and by whom."""
        if event.verb == "claim" and event.error is None:
            for message in event.result:
                claim = message.claim
                line = [event.box.name, claim.id, claim.fence, str(claim.owner), claim.until.timestamp()]
                self._log.write(json.dumps(line) + "\n")
            self._log.flush()

    async def once(self, message: Message[int], tx: Any) -> Outcome | None:
        await self._write(tx, "exact", message)
        await self.room.outbox("sent").enqueue("t", message.payload, group=message.group, tx=tx)
        return await self._outcome()

    async def effect(self, message: Message[int], tx: Any) -> Outcome | None:
        await self._write(tx, "free", message)
        return await self._outcome()

    async def send(self, message: Message[int]) -> Outcome | None:
        """An effect that commits by itself: before the completion, if the worker lives that long."""
        outcome = await self._outcome()
        if outcome is None:
            async with self.room.store.transaction() as tx:
                await self._write(tx, "sent", message)
        return outcome

    async def count(self, message: Message[int]) -> Outcome | None:
        return await self._outcome()

    async def _write(self, tx: Any, box: str, message: Message[int]) -> None:
        values = (box, message.group, message.payload)
        if type(tx).__module__.startswith("asyncpg"):
            await tx.execute("INSERT INTO effects (box, line, number) VALUES ($1, $2, $3)", *values)
        else:
            await tx.execute("INSERT INTO effects (box, line, number) VALUES (%s, %s, %s)", values)

    async def _outcome(self) -> Outcome | None:
        number = self.chance.random() / self.options.trouble if self.options.trouble else 1.0
        if number < 0.2:
            raise ConnectionError("the weather")
        if number < 0.4:
            return Outcome.FAILED
        if number < 0.6:
            return Outcome.RETRY
        if number < 0.8:
            return Outcome.RETRY.after(timedelta(milliseconds=10))
        if number < 0.82:
            await asyncio.sleep(1.5 * self.options.lease)  # a slow one; its lease is renewed, unless it cannot be
        return None


async def work(options: Options) -> None:
    logging.getLogger("postroom").setLevel(logging.CRITICAL)  # failures are what these tests are about
    with Path(options.log).open("a", encoding="utf-8") as log:
        rooms = [Worker(options, number, log).room for number in range(options.workers)]
        await asyncio.gather(*(room.start() for room in rooms))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        await asyncio.gather(*(room.stop() for room in rooms))
        for room in rooms:
            await room.close()


if __name__ == "__main__":
    asyncio.run(work(Options.load(sys.argv[1])))
