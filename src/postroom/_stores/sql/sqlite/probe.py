"""Finds files that have changed, among all files of a room. SQLite has no notifications."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Hashable, Mapping

from postroom._stores.probe import PollingProbe
from postroom._stores.sql.sqlite.connection import MEMORY

RECENT_NANOSECONDS = 20_000_000
"""A file system rounds the times of files down to its clock tick, which is 4 or 10 ms. A file that has changed within
this time may change again without a difference, so it counts as changed in the next look, too."""


class SqliteProbe(PollingProbe):
    """Compares size and time of each database file and of its WAL.

    A look at 1,000 stores takes 5 ms, in a thread. A put is returned with the next look, after one interval at most.

    A change need not be a put: it may be a claim, a checkpoint, or the lease that a look takes. A look that writes
    nothing changes nothing: a connection that opens the file makes an empty WAL, and its end removes it.
    """

    def _target_of(self, url: str) -> str | None:
        path = url.partition("://")[2].removeprefix("/")
        return None if path == MEMORY else path

    async def _read(self, targets: Mapping[str, str]) -> Mapping[str, Hashable]:
        return await asyncio.to_thread(_states, targets)

    def refresh(self, store: str) -> bool:
        """Takes the present state of a store as seen: see `Probe`."""
        path = self._targets.get(store)
        if path is None:
            return False
        # A state that is recent would be returned once more, and it is the room's own.
        known, self._states[store] = self._states.get(store), _state(path, recent_since=None)
        return known is not None and known != self._states[store]


def _states(paths: Mapping[str, str]) -> dict[str, Hashable]:
    recent_since = time.time_ns() - RECENT_NANOSECONDS
    return {store: _state(path, recent_since) for store, path in paths.items()}


def _state(path: str, recent_since: int | None) -> Hashable:
    database, log = _stat(path), _stat(f"{path}-wal")
    is_recent = recent_since is not None and max(database[0], log[0]) >= recent_since
    return database, log, is_recent


def _stat(path: str) -> tuple[int, int]:
    """Returns the time and the size of a file. An empty file is like a missing one: it contains no messages."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path for each file would take longer than the call
    except OSError:
        return 0, 0
    return (found.st_mtime_ns, found.st_size) if found.st_size else (0, 0)
