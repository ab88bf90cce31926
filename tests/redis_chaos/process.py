"""Workers or a writer in a process of their own: python -m tests.redis_chaos.process OPTIONS

OPTIONS is JSON, the fields of `Options`. The process says "ready" when it has begun, and goes on until it is killed, or
its stdin ends; then it stops in order. What it did is in its log, a line for each thing, written before anything else
happens:

    ["claim", id, fence, owner, lease end, message id]      by a worker, for each message it was given
    ["handle", message id, when]                            by a worker, when the handler of a message was called
    ["ack", first, last, when]                              by a writer, when the put of these has returned
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from postroom import Backoff, Cleaning, Message, NewMessage, Postroom
from postroom._kernel.observer import Event
from tests.redis import open_at

BOX = "plain"
LINES = 20
"""Groups, where there is order."""


@dataclass(frozen=True)
class Options:
    """The options of a process."""

    url: str
    prefix: str
    log: str = ""
    name: str = ""
    role: str = "workers"
    """Or `writer`."""
    workers: int = 2
    """Rooms, each with workers of its own."""
    fifo: bool = False
    lease: float = 2.0
    batch_size: int = 20
    trouble: float = 0.0
    """The share of handler calls that fail."""
    pace: float = 0.005
    """Seconds between the batches of a writer: the point is what happens meanwhile, not how much."""

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Options:
        return cls(**json.loads(text))


def open_room(options: Options, **more: Any) -> Postroom:
    return Postroom(store=open_at(options.url, "async", prefix=options.prefix), **more)


def open_box(room: Any, options: Options) -> Any:
    return room.inbox(
        BOX,
        order="fifo" if options.fifo else "none",
        lease_seconds=options.lease,
        batch_size=options.batch_size,
        concurrency=2,
        max_attempts=10_000,
        backoff=Backoff.constant(0.005),
        poll_interval=timedelta(milliseconds=20),
        max_poll_interval=timedelta(milliseconds=200),
        # Pauses and kills of workers cost deliveries, and must not make a message dead.
        max_deliveries=10_000,
    )


def message_id(writer: str, number: int) -> str:
    return f"{writer}-{number}"


def message(writer: str, number: int) -> NewMessage:
    """A writer's numbers go to its own groups in order."""
    return NewMessage(
        "t", number, source="s", message_id=message_id(writer, number), group=f"{writer}-{number % LINES}"
    )


class Log:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, *lines: list[Any]) -> None:
        self._file.write("".join(json.dumps(line) + "\n" for line in lines))
        self._file.flush()


class Worker:
    """One room with its handler."""

    def __init__(self, options: Options, number: int, log: Log) -> None:
        self._options, self._log = options, log
        self._chance = random.Random(f"{options.name} {number}")
        cleaning = Cleaning(reap_interval=timedelta(milliseconds=200))
        self.room = open_room(options, cleaning=cleaning, observers=[self._note])
        open_box(self.room, options).handler("t")(self._handle)

    def _note(self, event: Event) -> None:
        if event.verb == "claim" and event.error is None:
            self._log.write(
                *(
                    ["claim", claim.id, claim.fence, str(claim.owner), claim.until.timestamp(), each.message_id]
                    for each in event.result
                    for claim in [each.claim]
                )
            )

    async def _handle(self, message: Message[int]) -> None:
        self._log.write(["handle", message.message_id, time.monotonic()])  # a clock that all processes share
        if self._chance.random() < self._options.trouble:
            raise ConnectionError("the weather")


async def work(options: Options, log: Log) -> None:
    rooms = [Worker(options, number, log).room for number in range(options.workers)]
    await asyncio.gather(*(room.start() for room in rooms))
    _say_ready()
    await _wait_until_stdin_ends()
    await asyncio.gather(*(room.close() for room in rooms))


async def write(options: Options, log: Log) -> None:
    """Batches of ten; what is not known to be stored is put again, under the same keys."""
    room = open_room(options)
    box = open_box(room, options)
    stopping = asyncio.create_task(_wait_until_stdin_ends())
    _say_ready()
    first = 0
    while not stopping.done():
        batch = [message(options.name, number) for number in range(first, first + 10)]
        try:
            await box.enqueue_many(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not stored for certain
            sys.stderr.write(f"{time.time():.3f} {type(error).__name__}: {error}\n"[:300])
            await asyncio.sleep(0.05)
            continue
        log.write(["ack", first, first + 9, time.time()])
        first += 10
        await asyncio.sleep(options.pace)
    await room.close()


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def _wait_until_stdin_ends() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def main() -> None:
    options = Options.load(sys.argv[1])
    logging.getLogger("postroom").setLevel(logging.CRITICAL)  # failures are what these tests are about
    with Path(options.log).open("a", encoding="utf-8") as file:
        asyncio.run((write if options.role == "writer" else work)(options, Log(file)))


if __name__ == "__main__":
    main()
