"""Workers for the test that kills them: python -m tests.runtime.zygote FILE.

For each line on stdin, a seed, it forks a worker and says its process id: that is quicker than to start Python anew. A
worker handles whatever there is, and never ends by itself.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
from contextlib import closing
from datetime import timedelta
from typing import Any

import aiosqlite

from postroom import Backoff, Cleaning, Message, Outcome, Postroom

LEASE = 0.4
OPTIONS: Any = {
    "order": "fifo",
    "lease_seconds": LEASE,
    "batch_size": 10,
    "concurrency": 2,
    "max_attempts": 10_000,
    "backoff": Backoff.constant(0.005),
    "poll_interval": timedelta(milliseconds=5),
    "max_poll_interval": timedelta(milliseconds=20),
}


def boxes(room: Any) -> tuple[Any, Any, Any]:
    return room.inbox("exact", **OPTIONS), room.inbox("plain", **OPTIONS), room.outbox("sent", **OPTIONS)


async def work(path: str, seed: int) -> None:
    chance = random.Random(seed)
    room = Postroom(f"sqlite:///{path}", cleaning=Cleaning(reap_interval=timedelta(milliseconds=200)))
    exact, plain, sent = boxes(room)

    def random_outcome() -> Outcome | None:
        number = chance.random()
        if number < 0.02:
            raise ConnectionError("the weather")
        return Outcome.FAILED if number < 0.04 else Outcome.RETRY if number < 0.06 else None

    async def once(message: Message[int], tx: aiosqlite.Connection) -> Outcome | None:
        await tx.execute("INSERT INTO exact (line, number) VALUES (?, ?)", [message.group, message.payload])
        await sent.enqueue("t", message.payload, group=message.group, tx=tx)
        return random_outcome()

    def write(table: str, message: Message[int]) -> Outcome | None:
        """An effect that commits by itself: before the completion, if the worker lives that long."""
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            connection.execute(f"INSERT INTO {table} (line, number) VALUES (?, ?)", [message.group, message.payload])
        return random_outcome()

    exact.handler("t", transactional=True)(once)
    plain.handler("t")(lambda message: write("plain", message))
    sent.handler("t")(lambda message: write("sent", message))
    async with room:
        await asyncio.Event().wait()


def main(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # this process does not wait for them
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            sys.stdin.close()
            asyncio.run(work(path, int(line)))
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
