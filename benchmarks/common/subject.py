"""The protocol of a measured library. Each runs in a separate process, in one event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks.workload import Item, chunks

QUIET = 0.5
"""Seconds without a handler call after which a library that does not say so counts as done."""


class Span(NamedTuple):
    """When work began and ended, by a clock that all processes of the machine share, and how many messages it was."""

    began: float
    ended: float
    handled: int


class Subject(ABC):
    """One library on one database. What is not under a clock may take its time."""

    def __init__(self, url: str, groups: int = 0) -> None:
        self.url = url
        self.groups = groups
        """In how many FIFO groups messages are sent; 0 for no order."""

    @abstractmethod
    async def install(self) -> None:
        """Make the tables, in an empty database."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and do what a program does once."""

    @abstractmethod
    async def send_one(self, item: Item) -> None:
        """Return when it is durable."""

    @abstractmethod
    async def send_bulk(self, items: list[Item]) -> None:
        """As fast as the library can; return when all are durable."""

    async def send_each(self, items: list[Item]) -> None:
        for item in items:
            await self.send_one(item)

    async def send_from_tasks(self, items: list[Item], tasks: int) -> None:
        """Many tasks, each of which awaits its own messages one by one."""
        async with asyncio.TaskGroup() as group:
            for share in chunks(items, -(-len(items) // tasks)):
                group.create_task(self.send_each(share))

    async def send(self, items: list[Item], size: int) -> None:
        for chunk in chunks(items, size):
            await self.send_bulk(chunk)

    @abstractmethod
    async def drain(self, batch: int, expected: int | None) -> Span:
        """Handle all that waits, with a handler that does nothing. `expected` is a hint: so many will come here."""

    async def take(self, batch: int, count: int) -> Span:
        """Handle `count` of the messages that wait."""
        raise NotImplementedError(f"{type(self).__name__} only drains")

    @abstractmethod
    async def serve(self, handled: Callable[[], None]) -> None:
        """Start a worker that waits for messages and calls `handled` for each."""

    @abstractmethod
    async def stop_serving(self) -> None:
        """End that worker."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what `open` took."""


class Tally:
    """Counts handler calls, and knows when they were enough, or when they have ended."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.count = 0
        self.last = 0.0
        self.enough = asyncio.Event()

    def add(self, number: int = 1) -> None:
        self.count += number
        self.last = time.monotonic()
        if self.count == self.wanted or (self.wanted and self.count > self.wanted):
            self.enough.set()

    async def wait(self) -> None:
        """Waits for the expected number of messages; without one, until nothing has happened for a while."""
        while not self.enough.is_set():
            seen = self.count
            try:
                async with asyncio.timeout(QUIET if self.wanted is None else None):
                    await self.enough.wait()
            except TimeoutError:
                if self.count == seen:
                    return


async def seconds(work: Callable[[], Awaitable[None]]) -> float:
    """How long it takes, beginning with a tidy heap."""
    gc.collect()
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began
