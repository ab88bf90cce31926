"""Probes: find the stores of one server in which other processes may have put messages.

A room over many stores has one probe for each server, not one listener for each store. What a probe returns are hints.
They may be wrong, and they may be lost: the room looks at each store from time to time in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Hashable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from postroom._kernel.cancellation import cancel_once, check_cancelled
from postroom.errors import RoomClosed

PROBE_SECONDS = 1.0
"""Seconds between two looks of a probe that polls its server."""


class Probe(Protocol):
    """Finds the stores of one server in which other processes may have put messages.

    A probe belongs to one event loop. It connects when `wait` is called.
    """

    def set_stores(
        self,
        urls: Mapping[str, str],
        *,
        prefixes: Mapping[str, str] | None = None,
        boxes: Collection[str] = (),
    ) -> None:
        """Sets the stores by their identifiers. May be called at any time, also while `wait` waits.

        `prefixes`: of the stores whose prefix is not that of the probe's options. `boxes`: the keys of the boxes whose
        messages matter. Only a Redis Cluster needs them: it has a channel for each box.
        """

    async def wait(self) -> frozenset[str]:
        """Waits until stores may have new messages; returns their identifiers.

        Raises the driver's error if the connection fails. The next call connects again. It does not return what
        changed before a store was first seen. Raises RoomClosed after `close`.
        """

    def refresh(self, store: str) -> bool:
        """Takes the present state of a store as seen. Returns True if the store had changed since it was last seen.

        The room calls it so that `wait` does not return a store that only this process has changed: after a look or a
        visit that found nothing more to do; and before and after it closes a store, which is not closed if it has
        changed. A probe without a cheap way to do this returns False and changes nothing.
        """

    async def close(self) -> None:
        """Ends a pending `wait`, which raises RoomClosed, and closes the connection."""


class ProbeTask:
    """The one task of a probe that waits, so that `close` can end it."""

    def __init__(self) -> None:
        self._task: asyncio.Task[frozenset[str]] | None = None
        self._is_closed = False

    async def run(self, waiting: Coroutine[Any, Any, frozenset[str]]) -> frozenset[str]:
        if self._is_closed:
            waiting.close()
            raise RoomClosed
        self._task = asyncio.create_task(waiting)
        try:
            return await self._task
        except asyncio.CancelledError:
            check_cancelled()  # the caller was cancelled, not only the task
            raise RoomClosed from None

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None and not self._task.done():
            cancel_once(self._task)
            await asyncio.wait([self._task])


class PollingProbe:
    """A probe that compares the state of each store with the state that it had before.

    A store that is seen for the first time is not returned. Its state is kept while the connection is lost, so changes
    of that time are found when it is back.
    """

    def __init__(self, interval: float = PROBE_SECONDS) -> None:
        self._interval = interval
        self._urls: dict[str, str] = {}
        self._targets: dict[str, str] = {}
        """What is looked at, for each store that has it."""
        self._states: dict[str, Hashable] = {}
        self._changed = asyncio.Event()
        """Set when the stores were set: `wait` then looks at once."""
        self._task = ProbeTask()
        self._looked_at = float("-inf")

    def set_stores(
        self,
        urls: Mapping[str, str],
        *,
        prefixes: Mapping[str, str] | None = None,
        boxes: Collection[str] = (),
    ) -> None:
        """Sets the stores: see `Probe`."""
        targets = {store: target for store, url in urls.items() if (target := self._target_of(url))}
        is_kept = {store: targets.get(store) == target for store, target in self._targets.items()}
        self._states = {store: state for store, state in self._states.items() if is_kept[store]}
        self._urls, self._targets = dict(urls), targets
        self._changed.set()

    async def wait(self) -> frozenset[str]:
        """Waits for changes: see `Probe`."""
        return await self._task.run(self._wait())

    async def _wait(self) -> frozenset[str]:
        while True:
            await self._pause()
            check_cancelled()
            if changed := await self._look():
                return changed

    async def _pause(self) -> None:
        """Waits until the interval since the last look has passed, or until the stores are set."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._looked_at + self._interval):
                await self._changed.wait()
        self._changed.clear()
        self._looked_at = asyncio.get_running_loop().time()

    async def _look(self) -> frozenset[str]:
        targets, known = self._targets, dict(self._states)
        found = await self._read(targets)
        if self._targets is not targets:  # the stores were set meanwhile: the next look is at once
            return frozenset()
        # A state that `refresh` has taken meanwhile is newer than what was found.
        found = {store: state for store, state in found.items() if self._states.get(store) == known.get(store)}
        self._states = {**self._states, **found}
        return frozenset(store for store, state in found.items() if known.get(store, state) != state)

    def _target_of(self, url: str) -> str | None:
        """Returns what is looked at; None if the probe cannot look at this store."""
        raise NotImplementedError

    async def _read(self, targets: Mapping[str, str]) -> Mapping[str, Hashable]:
        """Returns the state of each store that has one."""
        raise NotImplementedError

    def refresh(self, store: str) -> bool:
        """Returns False: what this process does to a store cannot be told from what others do."""
        return False

    async def close(self) -> None:
        """Ends a pending `wait`: see `Probe`."""
        await self._task.close()
