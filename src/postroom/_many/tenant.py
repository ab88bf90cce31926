"""A tenant: one store of a room with many stores. While it is idle, it is this record and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from postroom._kernel.policy import Box
from postroom._kernel.verified import Verified
from postroom._many.config import StoreConfig
from postroom._room_store import WorkerStore
from postroom.spi import Features

IDLE_SECONDS = (1.0, 10.0)
"""How long an open store stays open without a call: the shortest and the longest time."""


class StoreFacts(NamedTuple):
    """What is known of a store object, before it has connected."""

    features: Features
    addresses: frozenset[str]
    tx_classes: Sequence[str]


class StoreFactory(Protocol):
    """Makes the store objects of a room."""

    def make(self, key: str, config: StoreConfig, verified: Verified) -> WorkerStore:
        """Returns a store, with the wrappers of the room. It connects when its first verb is called."""

    def server_of(self, config: StoreConfig) -> str:
        """Returns the server of a store: stores on the same server share a limit."""


class OpenStore:
    """A store object in use."""

    __slots__ = ("calls", "idle_since", "is_detached", "loops", "opened_at", "server", "store", "visits")

    def __init__(self, store: WorkerStore, server: str) -> None:
        self.store = store
        self.server = server
        self.calls = 0
        """Calls that use the store at this moment."""
        self.visits = 0
        """How many of them are visits."""
        self.loops: set[asyncio.AbstractEventLoop] = set()
        """The event loops that have used it: each has connections."""
        self.opened_at = self.idle_since = time.monotonic()
        self.is_detached = False
        """Whether its tenant is removed or has another configuration: it is closed when the last call has ended."""

    def is_idle(self, now: float) -> bool:
        """Returns True if the store was idle for as long as it was in use, or for `IDLE_SECONDS`.

        A store that was used once is closed soon, which ends its sessions. A PostgreSQL session that stays open and
        idle after its first statements adds them to the counters of the server 10 seconds later, so probes of other
        processes would find a first message late.
        """
        shortest, longest = IDLE_SECONDS
        limit = min(max(self.idle_since - self.opened_at, shortest), longest)
        return not self.calls and now - self.idle_since > limit


class Tenant:
    """One store. Its store object exists while a call needs it, and some seconds longer (`servers.OpenStores`)."""

    __slots__ = ("_factory", "_facts", "config", "is_removed", "key", "opened", "server", "verified", "visits")

    def __init__(self, key: str, config: StoreConfig, factory: StoreFactory) -> None:
        self.key = key
        self._factory = factory
        self.opened: OpenStore | None = None
        self.is_removed = False
        self.visits: set[object] = set()
        """The visits whose handlers may run. While there are some, a removed tenant can be used."""
        self.configure(config)

    def configure(self, config: StoreConfig) -> None:
        """Sets the configuration. What was known of the database is forgotten."""
        self.config = config
        self.server = self._factory.server_of(config)
        self.verified = Verified()
        self._facts: StoreFacts | None = None

    @property
    def is_gone(self) -> bool:
        """True if it was removed, and its visits have ended."""
        return self.is_removed and not self.visits

    @property
    def facts(self) -> StoreFacts:
        if self._facts is None:
            store = self.make()
            self._facts = StoreFacts(store.features, store.addresses, tuple(store.tx_classes))
        return self._facts

    @property
    def stays_open(self) -> bool:
        """True if the store loses its data when it is closed."""
        return not self.facts.features.durable

    def make(self) -> WorkerStore:
        """Returns a new store object, which has no connections."""
        return self._factory.make(self.key, self.config, self.verified)

    def limited(self, box: Box) -> Box:
        """Returns the box with the limits of this store."""
        most = self.config.concurrency
        if most is None or most >= box.work.concurrency:
            return box
        return replace(box, work=replace(box.work, concurrency=most))

    def __repr__(self) -> str:
        return f"<Tenant {self.key!r}>"
