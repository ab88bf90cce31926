"""The janitor: frees passed leases, and deletes what is older than its box keeps it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from postroom._kernel.local import PerLoop
from postroom._kernel.states import State
from postroom._kernel.texts import ErrorTexts
from postroom._runtime.service import Service, check_cancelled

SHARE = 100
"""A duty takes at most one part in so many of the time: with a large backlog it is done less often."""


class Cleaned(NamedTuple):
    """What a cleanup did in one box."""

    reaped: int
    """Leases freed and messages buried because they expired."""
    done: int
    """Done messages deleted."""
    dead: int
    """Dead letters deleted."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """How often, and how much at once."""

    interval: timedelta = timedelta(minutes=5)
    reap_interval: timedelta = timedelta(seconds=30)
    batch_size: int = 1000
    restart_delay: timedelta = timedelta(seconds=30)
    automatic: bool = True
    """Whether it starts with the room; otherwise call `room.cleanup()`, here or on another host."""


class Janitor:
    """Cleans the boxes of a room: one task per box and duty, each with its interval."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._services: PerLoop[dict[str, Service]] = PerLoop(dict)

    def start(self, boxes: Iterable[Any], store: Any, is_overdue: Callable[[str], bool]) -> None:
        """`is_overdue`: whether a worker of the box with this key has something in hand whose lease may have passed."""
        if not self._cleaning.automatic:
            return
        for box in boxes:
            where, errors = f"store={store.name} box={box.box.key}", store.errors
            self._add(f"{where} reap", partial(self._reap, box, is_overdue), self._cleaning.reap_interval, errors)
            for state in _purged_states(box):
                self._add(f"{where} purge {state}", partial(self._purge, box, state), self._cleaning.interval, errors)
        for service in self._services.get().values():
            service.start()

    def _add(self, name: str, duty: Callable[[], Awaitable[Any]], interval: timedelta, errors: ErrorTexts) -> None:
        async def forever() -> None:
            took = 0.0
            while True:
                check_cancelled()
                await asyncio.sleep(max(interval.total_seconds(), took * SHARE))
                began = time.monotonic()
                await duty()
                took = time.monotonic() - began

        delay = self._cleaning.restart_delay.total_seconds()
        self._services.get().setdefault(name, Service(name, forever, restart_delay=delay, errors=errors))

    async def _reap(self, box: Any, is_overdue: Callable[[str], bool]) -> None:
        """Not while that would undo the late success of a handler here. Claims free what others have lost."""
        if not is_overdue(box.box.key):
            await box.reap()

    async def _purge(self, box: Any, state: State) -> int:
        keeping = box.box.keeping
        age = keeping.retention if state is State.DONE else keeping.dead_retention
        return int(await box.purge(state, older_than=age, batch_size=self._cleaning.batch_size))

    async def clean(self, box: Any) -> Cleaned:
        """Every duty once, until nothing is left to do."""
        reaped = await box.reap()
        purged = {state: await self._purge(box, state) for state in _purged_states(box)}
        return Cleaned(sum(reaped), purged[State.DONE], purged.get(State.DEAD, 0))

    async def stop(self) -> None:
        services = self._services.pop() or {}
        await asyncio.gather(*(service.cancel() for service in services.values()))


def _purged_states(box: Any) -> list[State]:
    return [State.DONE] if box.box.keeping.dead_retention is None else [State.DONE, State.DEAD]
