"""The workers of a room with one store.

A pump is woken in three ways: by `StoreWorkers.wake`, after a verb of this process; by `StoreWorkers.listen`, which
waits for notifications of the store; and by polling, which needs neither. See `schedule.py` for why no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from postroom._boxes.handled_box import HandledBox
from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.observer import Event
from postroom._room_store import WorkerStore
from postroom._runtime.janitor import Janitor
from postroom._runtime.pump import Pump
from postroom._runtime.values import Cleaned, Cleaning


class StoreWorkers:
    """Makes a pump for each box."""

    discovers = False

    def __init__(self, store: WorkerStore, cleaning: Cleaning) -> None:
        self._store = store
        self._janitor = Janitor(cleaning)
        self.name = store.name
        self.errors = store.errors
        self.listens = store.features.notify

    def make(self, box: HandledBox) -> Pump:
        return Pump(self._store, box.box, box.handlers, topics=box.claimed_topics)

    def is_transient(self, error: BaseException) -> bool:
        return self._store.is_transient(error)

    async def check(self, box: HandledBox) -> None:
        """Raises OrderMismatch if the box has another order in the store. If the store fails, the claim checks."""
        try:
            await self._store.check_order(box.box)
        except Exception as error:
            if not self._store.is_transient(error):
                raise

    def wake(self, event: Event, workers: Mapping[str, Pump]) -> None:
        pump = workers.get(event.box.key)
        if pump is None:
            return
        pump.wake()
        for seconds in due_times(event):
            pump.expect(seconds)

    async def listen(self, workers: Mapping[str, Pump]) -> None:
        """Wakes pumps when the store notifies of a message that another process has put.

        After a reconnect, the store returns no keys: notifications may be lost, so every pump claims.
        """
        while True:
            check_cancelled()
            keys = await self._store.wait()
            for key, pump in workers.items():
                if not keys or key in keys:
                    pump.wake()

    def start_cleaning(self, boxes: list[HandledBox], workers: Mapping[str, Pump]) -> None:
        def is_overdue(key: str) -> bool:
            return key in workers and workers[key].is_overdue

        self._janitor.start(boxes, self._store, is_overdue)

    async def stop_cleaning(self) -> None:
        await self._janitor.stop()

    async def clean(self, box: HandledBox) -> Cleaned:
        return await self._janitor.clean(box)


def due_times(event: Event) -> list[float]:
    """Returns in how many seconds the messages of a put become due, if that is later than now."""
    if event.verb != "put":
        return []
    now = datetime.now(UTC)
    later = {draft.due for draft in event.given if draft.due is not None and draft.due > now}
    return [(due - now).total_seconds() for due in later]
