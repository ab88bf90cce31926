"""The dispatcher: the worker of one box over many stores.

It makes a *visit* to each store that is ready, in the order of the selection. A visit is a pump. It ends when the store
has nothing more to claim, or when the selection gives the next batch to another store. At most `concurrency` handlers
run at the same time, in all visits together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from postroom._boxes.handled_box import HandledBox
from postroom._kernel.cancellation import cancel_once, check_cancelled
from postroom._many.checked_selection import CheckedSelection
from postroom._many.selection import Batch, Selection
from postroom._many.servers import AsyncOpenStores
from postroom._many.slots import Slots
from postroom._many.store_schedule import StoreSchedule
from postroom._many.tenant import Tenant
from postroom._many.visit import Visit
from postroom._runtime.pump import Pump
from postroom.errors import StoreBusy

SLOW_SECONDS = 1.0
"""A visit whose first claim takes longer no longer takes the place of another visit."""
ASK_AGAIN_SECONDS = 0.5
"""The pause after which a selection that returned no store is asked again."""


class Dispatcher:
    """Claims, handles and settles the messages of one box in many stores."""

    def __init__(
        self,
        handled: HandledBox,
        stores: AsyncOpenStores,
        tenants: Iterable[Tenant],
        schedule: StoreSchedule,
        selection: Selection,
    ) -> None:
        """`tenants`: all stores of the room, for `drain`."""
        self.box = handled.box
        self._handled = handled
        self._stores = stores
        self._tenants = tenants
        self._schedule = schedule
        self._selection = CheckedSelection(selection, self.box.key, schedule.errors)
        self._slots = Slots(self.box.work.concurrency)
        self._most_visits = self.box.work.concurrency + selection.overlap
        self._ready: dict[str, Tenant] = {}
        """The stores that are ready, and not being visited. The one that waits the longest comes first."""
        self._visits: set[Visit] = set()
        self._claiming: dict[str, Visit] = {}
        """The visits by store, without those whose store was removed or has another configuration."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """Set when a visit may begin or has ended."""
        self._is_stopping = False
        self._errors: list[Exception] | None = None
        """In `drain`: the errors of stores."""
        self.claimed = 0
        self.raised: dict[tuple[str, int], BaseException] = {}
        self.last_error: str | None = None

    # -- running -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Makes visits until `stop` was called and all of them have ended."""
        self._schedule.attach(self.box.key, self)
        try:
            while not (self._is_stopping and not self._visits):
                check_cancelled()
                self._changed.clear()
                selects_none = self._begin_visits()
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN_SECONDS if selects_none else None):
                        await self._changed.wait()
        finally:
            self._schedule.detach(self.box.key)
            await self._cancel_visits()

    async def drain(self) -> int:
        """Visits all stores until nothing more can be claimed. Raises the error of a store after the others."""
        self._errors = []
        self._ready = {tenant.key: tenant for tenant in self._tenants}
        try:
            self._begin_visits()
            while self._visits:
                check_cancelled()
                self._changed.clear()
                await self._changed.wait()
                self._begin_visits()
        finally:
            await self._cancel_visits()
        if self._errors:
            raise self._errors[0]
        return self.claimed

    def stop(self) -> None:
        """Begins no visits, and stops those that are under way."""
        self._is_stopping = True
        for visit in self._visits:
            visit.stop()
        self._changed.set()

    async def release_all(self) -> None:
        """Does nothing: a visit that was cancelled has released its messages."""

    async def _cancel_visits(self) -> None:
        for task in self._tasks:
            cancel_once(task)
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- which stores are ready ----------------------------------------------------------------------------------

    def add_ready(self, tenant: Tenant) -> None:
        """Makes a store ready."""
        visit = self._claiming.get(tenant.key)
        if visit is None:
            self._ready.setdefault(tenant.key, tenant)
            self._changed.set()
        elif visit.pump is not None:
            visit.pump.wake()  # and when the visit has ended, there is a look

    def remove_ready(self, key: str) -> None:
        """Makes a store not ready."""
        self._ready.pop(key, None)

    def remove(self, key: str) -> None:
        """Makes a store not ready, and stops its visit. Another store of this identifier does not wait for its end."""
        self.remove_ready(key)
        visit = self._claiming.pop(key, None)
        if visit is not None:
            visit.stop()

    # -- visits --------------------------------------------------------------------------------------------------

    def _begin_visits(self) -> bool:
        """Returns True if stores are ready, but the selection returned none."""
        while self._ready and not self._is_stopping and self._has_place:
            key = self._selection.select(self._ready.keys())
            if key is None:
                return True
            limit = self._limit(key)
            visit = self._claiming[key] = Visit(self._ready.pop(key), self, self._slots, limit)
            self._visits.add(visit)
            task = asyncio.create_task(self._visit(visit))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return False

    @property
    def _has_place(self) -> bool:
        return sum(not visit.is_detached for visit in self._visits) < self._most_visits

    def _limit(self, key: str) -> int:
        return self._selection.limit(key, self.box.work.batch_size)

    async def _visit(self, visit: Visit) -> None:
        timer = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._detach_slow, visit)
        error = None
        try:
            await self._claim_and_handle(visit)
        except Exception as raised:  # noqa: BLE001 - other stores go on
            error = raised
        finally:
            timer.cancel()
            self._visits.discard(visit)
            self.claimed += visit.total
            self._changed.set()
        self._visit_ended(visit, error)

    async def _claim_and_handle(self, visit: Visit) -> None:
        tenant = visit.tenant
        async with self._stores.using(tenant, is_visit=True) as store:
            handled = self._handled
            visit.pump = pump = Pump(
                store, tenant.limited(self.box), handled.handlers, topics=handled.claimed_topics, visit=visit
            )
            if visit.is_stopped:
                return
            tenant.visits.add(visit)
            try:
                await pump.drain()
            finally:
                tenant.visits.discard(visit)
                if self._errors is not None:
                    self.raised |= pump.raised

    def _visit_ended(self, visit: Visit, error: Exception | None) -> None:
        tenant, seconds, is_current = visit.tenant, visit.time.take(), self._is_current(visit)
        if not (visit.has_more and is_current):
            self._selection.ended(Batch(tenant.key, 0, seconds, tenant.config.weight))
        if not is_current:
            return
        del self._claiming[tenant.key]
        if isinstance(error, StoreBusy):
            self._ready[tenant.key] = tenant  # the store did not fail: too many others are open
        elif error is not None:
            self._failed(tenant, error)
        elif self._is_stopping:
            return
        elif visit.has_more:
            self._ready[tenant.key] = tenant
        elif self._errors is None:
            self._schedule.visit_ended(tenant, visit.total, self.box.work.idle[1].total_seconds())

    def _is_current(self, visit: Visit) -> bool:
        """Returns False if the store of a visit was removed, or has another configuration."""
        return self._claiming.get(visit.tenant.key) is visit

    def _failed(self, tenant: Tenant, error: Exception) -> None:
        if self._errors is not None:
            self._errors.append(error)
        else:
            self._schedule.failed(tenant, error)

    def _detach_slow(self, visit: Visit) -> None:
        if not visit.total:
            self._detach(visit)

    def _detach(self, visit: Visit) -> None:
        visit.is_detached = True
        self._changed.set()

    # -- during a visit ------------------------------------------------------------------------------------------

    def may_claim_again(self, visit: Visit, claimed: int) -> bool:
        """Returns True if the selection gives the next batch to the same store, or no other store waits for it.

        A visit also ends if a call waits for a place on its server.
        """
        if not self._is_current(visit):
            return False
        tenant = visit.tenant
        key = tenant.key
        visit.is_detached = False
        self._selection.ended(Batch(key, claimed, visit.time.take(), tenant.config.weight))
        if self._errors is None:
            self._schedule.visit_claimed(tenant)
        if self._is_stopping or self._stores.has_waiting(tenant):
            return False
        if self._ready and not self._has_place_besides(visit):
            self._ready[key] = tenant  # it comes last
            selected = self._selection.select(self._ready.keys())
            del self._ready[key]
            if selected != key:
                return False
        visit.limit = self._limit(key)
        return True

    def _has_place_besides(self, visit: Visit) -> bool:
        others = sum(not each.is_detached for each in self._visits if each is not visit)
        return others + 1 < self._most_visits

    def visit_failed(self, visit: Visit, error: Exception) -> None:
        """The store failed while messages are in hand. The visit goes on, but other stores do not wait for it."""
        self._detach(visit)
        if self._errors is None and self._is_current(visit):
            self._schedule.failed(visit.tenant, error)

    def visit_recovered(self, visit: Visit) -> None:
        if self._errors is None and self._is_current(visit):
            self._schedule.recovered(visit.tenant)

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> int:
        """How many messages are in hand."""
        return sum(pump.in_hand for pump in self._pumps())

    @property
    def threads(self) -> int:
        """Threads in which handlers run that were cancelled."""
        return sum(pump.threads for pump in self._pumps())

    def _pumps(self) -> list[Pump]:
        return [visit.pump for visit in list(self._visits) if visit.pump is not None]
