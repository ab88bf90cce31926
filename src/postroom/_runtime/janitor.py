"""The janitor: ends leases that have expired, and deletes messages past their retention."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial

from postroom._boxes.handled_box import HandledBox
from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.local import PerLoop
from postroom._kernel.queries import Reaped
from postroom._kernel.states import State
from postroom._kernel.texts import ErrorTexts
from postroom._room_store import WorkerStore
from postroom._runtime.service import Service
from postroom._runtime.values import Cleaned, Cleaning

MIN_PAUSE_RATIO = 100
"""A pause is at least so many times as long as the run before it, so that cleaning takes at most 1 % of the time."""


class Janitor:
    """Cleans the boxes of a room. Each box and each duty (reap, purge of a state) has a task with an interval."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._services: PerLoop[dict[str, Service]] = PerLoop(dict)

    def start(self, boxes: Iterable[HandledBox], store: WorkerStore, is_overdue: Callable[[str], bool]) -> None:
        """Starts the tasks. Does nothing if cleaning is not automatic.

        `is_overdue`: takes the key of a box, and returns True if its worker in this process has a message in hand whose
        lease may have ended.
        """
        if not self._cleaning.automatic:
            return
        for box in boxes:
            if box.box.kind != "guard" and not store.features.claims:
                continue
            where, errors = f"store={store.name} box={box.box.key}", store.errors
            if _is_reaped(box):
                self._add(f"{where} reap", partial(self._reap, box, is_overdue), self._cleaning.reap_interval, errors)
            interval = box.box.retention.purge_interval or self._cleaning.interval
            for state in _purged_states(box):
                self._add(f"{where} purge {state}", partial(self._purge, box, state), interval, errors)
        for service in self._services.get().values():
            service.start()

    def _add(self, name: str, duty: Callable[[], Awaitable[object]], interval: timedelta, errors: ErrorTexts) -> None:
        async def forever() -> None:
            took = 0.0
            while True:
                check_cancelled()
                await asyncio.sleep(max(interval.total_seconds(), took * MIN_PAUSE_RATIO))
                began = time.monotonic()
                await duty()
                took = time.monotonic() - began

        delay = self._cleaning.restart_delay.total_seconds()
        self._services.get().setdefault(name, Service(name, forever, restart_delay=delay, errors=errors))

    async def _reap(self, box: HandledBox, is_overdue: Callable[[str], bool]) -> None:
        """Reaps, unless a worker of this process has an overdue lease: its outcome can still be stored, and a reap
        would undo that. Claims take over expired leases in any case."""
        if not is_overdue(box.box.key):
            await box.reap()

    async def _purge(self, box: HandledBox, state: State) -> int:
        retention = box.box.retention
        age = retention.done_age if state is State.DONE else retention.dead_age
        return int(await box.purge(state, older_than=age, batch_size=self._cleaning.batch_size))

    async def clean(self, box: HandledBox) -> Cleaned:
        """Does every duty once, until there is nothing left to clean."""
        reaped = await box.reap() if _is_reaped(box) else Reaped(0, 0)
        purged = {state: await self._purge(box, state) for state in _purged_states(box)}
        return Cleaned(sum(reaped), purged[State.DONE], purged.get(State.DEAD, 0))

    async def stop(self) -> None:
        services = self._services.pop() or {}
        await asyncio.gather(*(service.cancel() for service in services.values()))


def _is_reaped(box: HandledBox) -> bool:
    """Returns False for a guard: a begin takes expired leases itself, and until then a late outcome counts."""
    return box.box.kind != "guard"


def _purged_states(box: HandledBox) -> list[State]:
    return [State.DONE] if box.box.retention.dead_age is None else [State.DONE, State.DEAD]
