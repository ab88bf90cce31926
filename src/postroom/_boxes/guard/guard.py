"""The guard, for async and for sync code."""

from __future__ import annotations

from postroom._boxes.guard.verbs import GuardVerbs
from postroom._kernel.program import Async, Sync


class Guard(GuardVerbs, Async, public="postroom.Guard"):
    """Runs a handler once for each key, for async code. Made by `room.guard()`."""


class SyncGuard(GuardVerbs, Sync, public="postroom.sync.Guard"):
    """Runs a handler once for each key, for sync code. Made by `room.guard()` of `postroom.sync`."""
