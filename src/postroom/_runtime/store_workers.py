"""The workers of a room with one store, and what wakes them.

Why no wake-up is lost:

* **A verb of this process and event loop.** Its event reaches `wake` after the commit, and `Pump.wake` makes a claim
  due. If a claim is under way, another one follows (`schedule.py`). If the pump waits, the wait ends (`exchange.py`).
* **A verb in a caller's transaction.** Its event comes before the commit, so the claim may come too early. PostgreSQL
  sends the notification of the transaction at the commit. On other stores the next poll finds the message.
* **Another process, event loop or sync room.** Its transaction notifies, and `listen` wakes the pump. PostgreSQL leaves
  out notifications that follow each other closely; the listener makes up for them (`postgres/notifications.py`).
* **A lost connection.** Notifications of that time are lost. After each connect, `wait` returns an empty set, and every
  pump claims. Until then the pumps poll.
* **Due times.** A put of this process, a retry and a join deadline make a claim due at their time (`expect`). Polling
  finds the others.

Polling alone finds every message, so each of these only saves time.
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
