"""The schedule of a room with many stores: when to look at each store (decision 0016).

One task and one heap serve all stores. A look is one call of `attend`, which returns when the next message of each box
can be claimed. If one is due, the store is ready for the dispatcher of that box. Otherwise the store is closed. Its
next look is when a message becomes due, after a hint, or after `look_seconds`.

Why no message waits for ever: every store has an entry, every entry has a time in the heap or a look under way, and
every look ends with a new time in the heap. Hints only make that time earlier.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from heapq import heappop, heappush
from operator import attrgetter
from typing import Protocol
from uuid import UUID

from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.texts import ErrorTexts
from postroom._many.entry import DAY_SECONDS, Entry
from postroom._many.leases import NO_LEASE, give_back
from postroom._many.server_queues import ServerQueues
from postroom._many.servers import AsyncOpenStores
from postroom._many.tenant import Tenant
from postroom._room_store import WorkerStore
from postroom._runtime.schedule import now
from postroom.errors import FeatureMissing, OrderMismatch, SchemaError, StoreBusy
from postroom.spi import Attendance, Attendant

_log = logging.getLogger("postroom")

LEASE = timedelta(seconds=240)
"""How long a process attends a store. It is not renewed, so that stores are shared anew."""
HANDOVER_SECONDS = 10.0
"""How long a process that attends all stores takes no new lease after the end of one, so that another one can."""
HELP_SECONDS = 2.0
"""How long a message may be due in a store that another process attends, before this process helps."""
SPARED_SECONDS = 8.0
"""How long a hint at such a store is ignored, after a hint that led to a look and no message had waited for so long."""
ECHO_SECONDS = 2.0
"""A hint this soon after a visit may come from the visit itself, so the look waits for this long."""
UNCOMMITTED_SECONDS = 10.0
"""How long the commit of a put in a caller's transaction is awaited by looks."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 60.0
"""The pauses after visits that found nothing, although a message seemed to be due."""


_random = random.uniform  # spreads load, guards nothing


class ReadyStores(Protocol):
    """The dispatcher of a box, as the schedule sees it."""

    def add_ready(self, tenant: Tenant) -> None:
        """Makes a store ready."""

    def remove_ready(self, key: str) -> None:
        """Makes a store not ready."""

    def remove(self, key: str) -> None:
        """Makes a store not ready, and stops its visit."""


class StoreSchedule:
    """The looks of one event loop."""

    def __init__(
        self,
        stores: AsyncOpenStores,
        process: UUID,
        errors: ErrorTexts,
        *,
        fits: Callable[[WorkerStore], None],
        clean: Callable[[WorkerStore], Awaitable[None]],
        clean_seconds: float,
        look_seconds: float,
        seen: Callable[[Tenant], bool],
    ) -> None:
        """`fits`: raises if a store cannot do what the boxes need. `clean`: reaps and purges
        the boxes of a store; `clean_seconds`: the pause between two calls of it for a busy store. `look_seconds`: the
        pause between two looks at a store that gives no hint. `seen`: takes the present state of a store as seen by its
        probe, and returns whether it had changed."""
        self._stores = stores
        self._process = process
        self.errors = errors
        self._dispatchers: dict[str, ReadyStores] = {}
        self.fits = fits
        self._clean = clean
        self._clean_seconds = clean_seconds
        self._look_seconds = look_seconds
        self._seen = seen
        self._entries: dict[str, Entry] = {}
        self._heap: list[tuple[float, int, Entry]] = []
        self._pushed = 0
        self._changed = asyncio.Event()
        self._queues = ServerQueues()
        self._held = 0
        """How many stores this process attends."""
        self.looks = 0
        """Looks that have begun so far."""

    # -- the stores ----------------------------------------------------------------------------------------------

    def add(self, tenants: Iterable[Tenant]) -> None:
        """Adds stores. The first look at each is due, if there are dispatchers."""
        for tenant in tenants:
            entry = self._entries[tenant.key] = Entry(tenant, now())
            if self._dispatchers:
                self._look_at(entry, now())

    def remove(self, tenants: Iterable[Tenant]) -> None:
        """Removes stores."""
        for tenant in tenants:
            entry = self._entries.pop(tenant.key, None)
            if entry is not None:
                entry.at = math.inf
                self._held -= bool(entry.held_until)
            for dispatcher in self._dispatchers.values():
                dispatcher.remove(tenant.key)

    def clear(self) -> None:
        """Removes all stores."""
        self._entries.clear()
        self._heap.clear()
        self._held = 0

    def attach(self, box: str, dispatcher: ReadyStores) -> None:
        """Adds the dispatcher of a box. A look at every store is due."""
        self._dispatchers[box] = dispatcher
        for entry in self._entries.values():
            self._look_at(entry, max(now(), entry.breaker.until))

    def detach(self, box: str) -> None:
        """Removes the dispatcher of a box."""
        self._dispatchers.pop(box, None)

    def _entry_of(self, tenant: Tenant) -> Entry | None:
        """Returns the entry of a tenant; None if it was removed, even if another one has its identifier now."""
        entry = self._entries.get(tenant.key)
        return entry if entry is not None and entry.tenant is tenant else None

    def failing(self) -> dict[str, float]:
        """Returns the stores that have failed, and for how many seconds."""
        opened = {key: entry.breaker.opened_at for key, entry in self._entries.items()}
        return {key: now() - at for key, at in opened.items() if at is not None}

    # -- when a look is due --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Begins looks when they are due, until it is cancelled."""
        try:
            while True:
                check_cancelled()
                self._changed.clear()
                self._begin_due_looks()
                at = self._heap[0][0] if self._heap else None
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(at):
                        await self._changed.wait()
        finally:
            await self._queues.close()
            held = [entry for entry in self._entries.values() if entry.held_until > now() and not entry.breaker.is_open]
            held.sort(key=attrgetter("left_at"), reverse=True)  # those with the most recent messages first
            await give_back([entry.tenant for entry in held], self._stores, self._process)

    def _begin_due_looks(self) -> None:
        at = now()
        while self._heap and self._heap[0][0] <= at:
            due, _, entry = heappop(self._heap)
            if entry.at == due:  # otherwise it has got another time since
                entry.at, entry.is_looking = math.inf, True
                self._queues.enter(entry.tenant.server, self._look, entry, is_suspect=entry.breaker.is_open)

    def _look_at(self, entry: Entry, at: float) -> None:
        """Makes a look due at this time, unless an earlier one is due."""
        if entry.is_looking:
            entry.again = min(entry.again, at)  # the look that is under way may have come too early
            return
        if at >= entry.at:
            return
        entry.at = at
        self._pushed += 1
        heappush(self._heap, (at, self._pushed, entry))
        if self._heap[0][2] is entry:
            self._changed.set()

    def expect(self, key: str, seconds: float) -> None:
        """Makes a look at a store due in so many seconds: a message becomes due then."""
        entry = self._entries.get(key)
        if entry is not None and not entry.breaker.is_open:
            self._look_at(entry, now() + seconds)

    def message_put(self, key: str, box: str, *, is_committed: bool) -> None:
        """A verb of this process may have made a message claimable: makes the store ready without a look."""
        entry, dispatcher = self._entries.get(key), self._dispatchers.get(box)
        if entry is None or dispatcher is None or entry.breaker.is_open:
            return
        entry.pause = entry.not_before = 0.0
        if is_committed:
            dispatcher.add_ready(entry.tenant)
        else:
            entry.uncommitted_since = now()
            self._look_at(entry, now() + FIRST_PAUSE)

    def store_changed(self, key: str) -> None:
        """Another process may have put a message."""
        entry = self._entries.get(key)
        if entry is None or entry.breaker.is_open:
            return
        entry.pause = entry.not_before = 0.0
        if entry.free_at > now() >= entry.helps_until:
            # The other process looks at it. If that process has ended, this one finds the message later.
            if entry.hinted_at is None:
                entry.hinted_at = now()
            self._look_at(entry, max(now() + HELP_SECONDS, entry.spared_at + SPARED_SECONDS))
        else:
            self._look_at(entry, max(now(), entry.left_at + ECHO_SECONDS))

    def visit_ended(self, tenant: Tenant, claimed: int, longest_pause: float) -> None:
        """A visit has ended because it found nothing more; it had claimed so many messages.

        `longest_pause`: the longest pause after it. A message that becomes due waits for its end, if a message that
        this process cannot claim is due as well.
        """
        entry = self._entry_of(tenant)
        if entry is None:
            return
        self.recovered(tenant)
        entry.left_at = now()
        if claimed:
            entry.pause = 0.0
        else:
            entry.pause = min(max(entry.pause * 2, FIRST_PAUSE), LONGEST_PAUSE, longest_pause)
        entry.not_before = now() + entry.pause
        self._look_at(entry, now())

    def visit_claimed(self, tenant: Tenant) -> None:
        """A visit has claimed messages."""
        entry = self._entry_of(tenant)
        if entry is not None:
            self.recovered(tenant)
            entry.active = True
            if now() - entry.cleaned_at > self._clean_seconds:
                self._look_at(entry, now())

    # -- a look --------------------------------------------------------------------------------------------------

    async def _look(self, entry: Entry) -> None:
        tenant = entry.tenant
        if self._entries.get(tenant.key) is not entry:
            return  # it was removed while the look waited
        was_open = tenant.opened is not None
        self.looks += 1
        self._seen(tenant)  # before the look: a change after it is a hint
        try:
            async with self._stores.using(tenant) as store:
                entry.again = math.inf  # what came before is seen
                lease, entry.asked_at = self._lease(entry), now()
                attendance = await self._attend(store, entry, lease)
                if self._entries.get(tenant.key) is not entry:
                    return  # it was removed meanwhile, or has another configuration
                is_ready, at = self._note(entry, attendance, lease)
                await self._clean_if_due(entry, store)
        except Exception as error:  # noqa: BLE001 - whatever fails, the store is tried again
            entry.is_looking, entry.again = False, math.inf
            self.failed(tenant, error)
            return
        except BaseException:
            entry.is_looking = False
            raise
        if not is_ready:
            self.recovered(tenant)  # otherwise the visit shows whether the store works
        if not (is_ready or was_open):
            at = min(at, await self._close(tenant))
        at, entry.again, entry.is_looking = min(at, entry.again), math.inf, False
        if self._entries.get(tenant.key) is entry:
            self._look_at(entry, at)

    async def _close(self, tenant: Tenant) -> float:
        """Closes a store after a look that found nothing. Returns when to look again, if its probe saw a change.

        To close a store may change its files, as a message of another process does. So a change is noted before and
        forgotten after it.
        """
        has_changed = self._seen(tenant)
        await self._stores.close_idle(tenant)
        self._seen(tenant)
        return now() + ECHO_SECONDS if has_changed else math.inf

    async def _attend(self, store: WorkerStore, entry: Entry, lease: timedelta) -> Attendance:
        if not entry.is_fit:
            self.fits(store)
            entry.is_fit = True
        boxes = list(self._dispatchers)
        if isinstance(store, Attendant):
            return await store.attend(boxes, self._process, lease)
        return Attendance(dict.fromkeys(boxes, 0.0), None)  # a store without `attend` is polled

    def _lease(self, entry: Entry) -> timedelta:
        """Returns the soft lease to ask for: none for some seconds after a lease has ended, of this process or another.

        In these seconds, a process that attends fewer stores can take it. So the stores are shared, also if the leases
        of many stores end at the same time.
        """
        ended_at = entry.held_until or entry.free_at
        return NO_LEASE if ended_at and ended_at <= now() < ended_at + self._handover_seconds() else LEASE

    def _handover_seconds(self) -> float:
        """Returns the pause after the end of a lease: it is shorter in a process that attends fewer stores."""
        return HANDOVER_SECONDS * self._held / max(len(self._entries), 1)

    def _note(self, entry: Entry, attendance: Attendance, lease: timedelta) -> tuple[bool, float]:
        """Makes the store ready if a message is due. Returns whether it is ready, and when to look again."""
        at = now()
        self._note_lease(entry, attendance.free_in, lease)
        is_attended_elsewhere = attendance.free_in is not None and at >= entry.helps_until
        patience = self._patience(entry, at) if is_attended_elsewhere else 0.0
        is_ready, next_look = False, self._regular_look(entry)
        for key, seconds in attendance.due.items():
            if seconds > -patience:
                next_look = min(next_look, at + max(seconds + patience, 0.0))
            elif at < entry.not_before:
                next_look = min(next_look, entry.not_before)
            elif key in self._dispatchers:
                self._dispatchers[key].add_ready(entry.tenant)
                is_ready = True
        if is_attended_elsewhere:
            if is_ready:
                entry.helps_until = entry.free_at
            elif entry.hinted_at is not None:
                entry.spared_at = at
        entry.hinted_at = None
        if entry.uncommitted_since is not None:
            waited = at - entry.uncommitted_since
            if is_ready or waited > UNCOMMITTED_SECONDS:
                entry.uncommitted_since = None
            else:
                next_look = min(next_look, at + max(waited, FIRST_PAUSE))
        return is_ready, next_look

    def _patience(self, entry: Entry, at: float) -> float:
        """Returns how long a message may be due before this process helps the one that attends the store.

        A message that was due before the last hint and still waits shows that the other process has ended or is too
        slow. A message that came after it shows nothing: the other process may not know of it yet.
        """
        return HELP_SECONDS if entry.hinted_at is None else max(at - entry.hinted_at, HELP_SECONDS)

    def _note_lease(self, entry: Entry, free_in: float | None, lease: timedelta) -> None:
        was_held, at = bool(entry.held_until), now()
        if free_in is not None:
            entry.free_at, entry.held_until = at + free_in, 0.0
        elif lease and entry.held_until <= at:
            # Not later than the end that the store has: else a look between both would take the lease again.
            entry.free_at, entry.held_until = 0.0, entry.asked_at + lease.total_seconds()
        self._held += bool(entry.held_until) - was_held

    def _regular_look(self, entry: Entry) -> float:
        """Returns when to look without a reason.

        When a lease has ended, the process that attends the fewest stores looks first.
        """
        pause = self._handover_seconds() * _random(1, 1.2)
        if entry.free_at:
            return entry.free_at + pause
        if self._look_seconds == math.inf:
            return math.inf  # hints are all there is
        return min(now() + self._look_seconds * _random(0.9, 1.1), entry.held_until + pause)

    async def _clean_if_due(self, entry: Entry, store: WorkerStore) -> None:
        pause = self._clean_seconds if entry.active else DAY_SECONDS
        if entry.held_until and now() - entry.cleaned_at > pause:
            entry.cleaned_at, entry.active = now(), False
            await self._clean(store)

    # -- failures ------------------------------------------------------------------------------------------------

    def failed(self, tenant: Tenant, error: Exception) -> None:
        """Opens the breaker of a store."""
        entry = self._entry_of(tenant)
        if entry is None or tenant.is_removed:
            return  # its database may be gone
        if isinstance(error, StoreBusy):  # the store did not fail: too many others of its server are in use
            self._look_at(entry, now() + FIRST_PAUSE)
            return
        entry.is_fit = False
        if entry.breaker.fail(now()):
            does_not_fit = isinstance(error, SchemaError | FeatureMissing | OrderMismatch)
            what = "is left out" if does_not_fit else "failed"
            _log.warning(
                "store=%s %s (%s); it is tried again, and the other stores go on",
                tenant.key,
                what,
                self.errors.of(error),
            )
        for dispatcher in self._dispatchers.values():
            dispatcher.remove_ready(tenant.key)
        self._look_at(entry, entry.breaker.until)

    def recovered(self, tenant: Tenant) -> None:
        """Closes the breaker of a store."""
        entry = self._entry_of(tenant)
        opened_at = None if entry is None else entry.breaker.succeed()
        if opened_at is not None:
            _log.info("store=%s works again after %.1f s", tenant.key, now() - opened_at)
