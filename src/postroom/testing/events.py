"""Waiting for what happens, instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from postroom._kernel.observer import Event

Wanted = Callable[[Event], bool]


class Events:
    """An observer that keeps all events. A test can wait for one.

    events = Events()
    room = Postroom("memory://", observers=[events])
    ...
    await events.wait("settle")
    """

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self._arrived = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.seen.append(event)
        self._arrived.set()

    def of(self, verb: str) -> list[Event]:
        """Returns the events of `verb` so far, in order."""
        return [event for event in self.seen if event.verb == verb]

    async def wait(self, verb: str, wanted: Wanted = lambda _: True, *, count: int = 1, seconds: float = 10) -> Event:
        """Returns the `count`-th event of `verb` for which `wanted` is true. Waits for it if it has not happened yet.

        Raises TimeoutError after `seconds`.
        """
        async with asyncio.timeout(seconds):
            while True:
                fitting = [event for event in self.of(verb) if wanted(event)]
                if len(fitting) >= count:
                    return fitting[count - 1]
                self._arrived.clear()
                await self._arrived.wait()
