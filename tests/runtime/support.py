"""What the tests of the runtime share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Self, TypeVar

from postroom import NewMessage, State

R = TypeVar("R")

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=5)


async def soon(awaitable: Awaitable[R], seconds: float = 10) -> R:
    """What is awaited, which must not take long."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def put(box: Any, *ids: Any, topic: str = "t", payload: Any = "x", **options: Any) -> None:
    """Messages of one source, with these ids, in one go."""
    await box.enqueue_many([NewMessage(topic, payload, source="s", message_id=str(id_), **options) for id_ in ids])


async def states(box: Any) -> dict[str, State]:
    return {message.message_id: message.state for message in await box.find(limit=10_000)}


async def state_of(box: Any, message_id: Any = "1") -> State:
    return State((await box.get(str(message_id))).state)


def ids(messages: Iterable[Any]) -> list[str]:
    return [message.message_id for message in messages]


def always(result: Any = None) -> Callable[[Any], Any]:
    """Returns a handler that returns this."""

    def handle(_: Any) -> Any:
        return result

    return handle


class Gauge:
    """How many are inside at once: now, and at most so far."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


class Gate:
    """A handler waits in it until the test lets it go on; `entered` counts those that came."""

    def __init__(self) -> None:
        self.inside = Gauge()
        self.entered: list[Any] = []
        self._came = asyncio.Event()
        self._open = asyncio.Event()

    async def __call__(self, message: Any = None) -> None:
        self.entered.append(message)
        self._came.set()
        with self.inside:
            await self._open.wait()

    async def reached(self, count: int = 1, seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while len(self.entered) < count:
                self._came.clear()
                await self._came.wait()

    def open(self) -> None:
        self._open.set()


class Sabotage:
    """Makes verbs of a room's store raise, for this room, until it is mended."""

    def __init__(self, room: Any, *verbs: str, error: Exception | None = None) -> None:
        self.calls = 0
        self._error = error or ConnectionError("the store is away")
        self._broken = True
        self._failed = asyncio.Event()
        for verb in verbs:
            setattr(room.store, verb, self._wrap(getattr(room.store, verb)))

    def _wrap(self, verb: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._broken:
                self.calls += 1
                self._failed.set()
                raise self._error
            return await verb(*args, **kwargs)

        return call

    async def felt(self, count: int = 1, seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while self.calls < count:
                self._failed.clear()
                await self._failed.wait()

    def mend(self) -> None:
        self._broken = False

    def spoil(self) -> None:
        self._broken = True


class Logged(logging.Handler):
    """What the library logs, while it is open; can be waited for. Use it as a context manager."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        record.message = record.getMessage()
        self.records.append(record)
        self._loop.call_soon_threadsafe(self._arrived.set)

    def saying(self, text: str) -> list[logging.LogRecord]:
        return [record for record in self.records if text in record.message]

    async def says(self, text: str, count: int = 1, seconds: float = 10) -> logging.LogRecord:
        async with asyncio.timeout(seconds):
            while len(self.saying(text)) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.saying(text)[count - 1]

    def __enter__(self) -> Self:
        logging.getLogger("postroom").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("postroom").removeHandler(self)
