"""The workers of a room with many stores: a dispatcher for each box, one schedule, one discovery, and the probes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from typing import cast

from postroom._boxes.handled_box import HandledBox
from postroom._kernel.ids import OwnerToken
from postroom._kernel.local import PerLoop
from postroom._kernel.observer import Event
from postroom._kernel.program import async_runner
from postroom._many.dispatcher import Dispatcher
from postroom._many.hubs import Hubs
from postroom._many.probing import Probing
from postroom._many.registry import Change
from postroom._many.routed import MANY
from postroom._many.selection import Selection
from postroom._many.servers import AsyncOpenStores
from postroom._many.store_schedule import StoreSchedule
from postroom._many.tenants import Tenants
from postroom._room_store import WorkerStore
from postroom._runtime.janitor import Janitor
from postroom._runtime.store_workers import due_times
from postroom._runtime.values import Cleaned, Cleaning
from postroom.errors import FeatureMissing

_refresh_if_old = async_runner(lambda tenants: tenants.refresh(if_old=True))


class _LoopState:
    """What belongs to one event loop."""

    def __init__(self, schedule: StoreSchedule, probing: Probing) -> None:
        self.schedule = schedule
        self.probing = probing
        self.workers_changed: Callable[[], None] = _do_nothing
        """Called after a worker was made. Set while `listen` runs."""


def _do_nothing() -> None: ...


class TenantWorkers:
    """Makes a dispatcher for each box, and wakes them."""

    name = MANY
    listens = True

    def __init__(
        self,
        tenants: Tenants,
        *,
        boxes: Callable[[], Collection[HandledBox]],
        selection: Selection,
        cleaning: Cleaning,
        probes: bool,
        look_seconds: float,
        hubs: Hubs | None = None,
    ) -> None:
        """`boxes`: returns all boxes of the room. `probes`: if they are used. `look_seconds`: see `StoreSchedule`."""
        self._tenants = tenants
        self._registry = tenants.registry
        self._stores = cast("AsyncOpenStores", tenants.stores)
        self.errors = tenants.errors
        self._boxes = boxes
        self._selection = selection
        self._cleaning = cleaning
        self._janitor = Janitor(cleaning)
        self._cleans = False
        self._uses_probes = probes
        self._hubs = hubs
        self.discovers = tenants.discovery is not None
        self._look_seconds = look_seconds
        self._process = OwnerToken.new()
        self._states = PerLoop(self._new_state)

    def _new_state(self) -> _LoopState:
        probing = Probing(self.errors)
        schedule = StoreSchedule(
            self._stores,
            self._process,
            self.errors,
            fits=self._check_fits,
            clean=self._clean_store,
            clean_seconds=self._cleaning.interval.total_seconds(),
            look_seconds=self._look_seconds,
            seen=probing.seen,
        )
        return _LoopState(schedule, probing)

    @property
    def schedule(self) -> StoreSchedule:
        """The schedule of this event loop."""
        return self._states.get().schedule

    def failing(self) -> dict[str, float]:
        """Returns the stores that fail, and for how many seconds."""
        states = self._states.everywhere()
        return {key: seconds for state in states for key, seconds in state.schedule.failing().items()}

    # -- workers -------------------------------------------------------------------------------------------------

    def make(self, box: HandledBox) -> Dispatcher:
        """Returns a dispatcher. Each has a copy of the selection."""
        asyncio.get_running_loop().call_soon(self._states.get().workers_changed)
        return Dispatcher(box, self._stores, self._registry, self.schedule, self._selection)

    async def check(self, box: HandledBox) -> None:
        """Reads the list of stores, if it is old. Each store is checked when it is first looked at."""
        await _refresh_if_old(self._tenants)

    def is_transient(self, error: BaseException) -> bool:
        return False

    def wake(self, event: Event, workers: Mapping[str, Dispatcher]) -> None:
        """Makes the store of the event ready, now and when its messages become due."""
        schedule, later = self.schedule, due_times(event)
        for seconds in later:
            schedule.expect(event.store, seconds)
        if event.verb != "put" or len(later) < len(event.given):
            schedule.message_put(event.store, event.box.key, is_committed=not event.in_transaction)

    async def listen(self, workers: Mapping[str, Dispatcher]) -> None:
        """Runs the schedule, the discovery and the probes."""
        state = self._states.get()
        schedule, probing = state.schedule, state.probing
        loop = asyncio.get_running_loop()

        def changed(change: Change) -> None:
            loop.call_soon_threadsafe(apply, change)

        def apply(change: Change) -> None:
            schedule.remove([*change.removed, *change.configured])
            schedule.add([*change.added, *change.configured])
            set_probes()

        def set_probes() -> None:
            if self._uses_probes and workers:
                probing.set_tenants(self._registry, workers, schedule.store_changed)
            if self._hubs is not None and workers:
                probing.set_hub(self._hubs.get(), self._registry, schedule.store_changed)

        schedule.clear()  # an earlier run may have left stores that are removed since
        apply(Change(added=list(self._registry), configured=[], removed=[]))
        self._registry.listeners.append(changed)
        state.workers_changed = set_probes
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(schedule.run())
                group.create_task(self._keep_discovering())
        finally:
            state.workers_changed = _do_nothing
            self._registry.listeners.remove(changed)
            await probing.close()

    async def _keep_discovering(self) -> None:
        pause = 0.0
        while pause < math.inf:
            await asyncio.sleep(pause)
            pause = await _refresh_if_old(self._tenants)

    def _check_fits(self, store: WorkerStore) -> None:
        """Raises FeatureMissing if a store cannot do what the boxes need."""
        for box in self._boxes():
            if box.box.order.fifo and not store.features.fifo:
                raise FeatureMissing(f"this store cannot keep the order of groups: {box.box.key} cannot be FIFO")
            if not store.features.claims and box.box.kind != "guard":
                raise FeatureMissing(f"this store has no work queue, which {box.box.key} needs")
            if not store.features.transactional and any(handler.transactional for handler in box.handlers):
                raise FeatureMissing(f"this store has no transactions, which a handler of {box.box.key} needs")
            for handler in box.handlers:
                handler.check_transaction(store.tx_classes)

    # -- cleaning ------------------------------------------------------------------------------------------------

    def start_cleaning(self, boxes: list[HandledBox], workers: Mapping[str, Dispatcher]) -> None:
        """Lets the schedule clean stores: there is no task for each of them."""
        self._cleans = self._cleaning.automatic

    async def stop_cleaning(self) -> None:
        self._cleans = False

    async def _clean_store(self, store: WorkerStore) -> None:
        if self._cleans:
            for box in self._boxes():
                await self._janitor.clean(HandledBox(box.box, store))

    async def clean(self, box: HandledBox) -> Cleaned:
        """Cleans a box in all stores. Raises the error of a store after the others."""
        total, errors = Cleaned(0, 0, 0), list[Exception]()
        for tenant in self._registry:
            try:
                async with self._stores.using(tenant) as store:
                    cleaned = await self._janitor.clean(HandledBox(box.box, store))
            except Exception as error:  # noqa: BLE001 - it is raised in the end
                if not tenant.is_removed:
                    errors.append(error)
            else:
                total = Cleaned(*(sum(pair) for pair in zip(total, cleaned, strict=True)))
        if errors:
            raise errors[0]
        return total
