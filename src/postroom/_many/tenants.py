"""The stores of a room with many stores: their list, their store objects, and the router."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from postroom._boxes import check
from postroom._connect import open_store, server_of
from postroom._kernel.clock import Clock
from postroom._kernel.observer import Observer
from postroom._kernel.program import Mode, Program, call
from postroom._kernel.retry import StorageRetry
from postroom._kernel.texts import ErrorTexts, Redact
from postroom._kernel.verified import Verified
from postroom._many.config import DEFAULT_REFRESH, Discover, StoreConfig, StoreConfigs, configs_of, with_store
from postroom._many.discovery import Discovery
from postroom._many.distinct import DistinctStores
from postroom._many.registry import Change, Registry
from postroom._many.servers import AsyncOpenStores, OpenStores, SyncOpenStores
from postroom._many.transactions import OpenTransactions, TrackedStore, TransactionCheck
from postroom._room_store import WorkerStore
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, PostroomError

POOL_SIZE = 4
"""Connections of one open store, unless its URL has another number."""


@dataclass(frozen=True)
class StoreDefaults:
    """The options of a room that all of its stores have."""

    mode: Mode
    notify: bool
    deploy_schema: bool
    require_durable: bool
    observers: Sequence[Observer]
    storage_retry: StorageRetry
    redact: Redact | None
    clock: Clock | None


class StoreMaker:
    """Makes store objects with the options of a room. A `StoreFactory`."""

    def __init__(self, defaults: StoreDefaults) -> None:
        self._defaults = defaults
        self.transactions = OpenTransactions()

    def make(self, key: str, config: StoreConfig, verified: Verified) -> WorkerStore:
        from postroom._stores.for_room import wrap_for_room  # which imports asyncio

        defaults = self._defaults
        store = open_store(
            config.url,
            mode=defaults.mode,
            prefix=config.prefix,
            schema=config.schema,
            pool=config.pool,
            notify=defaults.notify,
            deploy_schema=defaults.deploy_schema if config.deploy_schema is None else config.deploy_schema,
            require_durable=defaults.require_durable,
            clock=defaults.clock,
            pool_size=POOL_SIZE,
            verified=verified,
        )
        if defaults.require_durable and not store.features.durable:
            raise FeatureMissing("it keeps nothing when its process ends, and require_durable is set")
        wrapped = wrap_for_room(
            store,
            defaults.mode,
            defaults.observers,
            defaults.storage_retry,
            defaults.redact,
            name=key,
            verified=verified,
        )
        return cast("WorkerStore", TrackedStore(wrapped, defaults.mode, self.transactions))

    def server_of(self, config: StoreConfig) -> str:
        return server_of(config.url)


class Tenants:
    """All stores of a room, in either mode."""

    def __init__(
        self,
        defaults: StoreDefaults,
        stores: StoreConfigs | None,
        discover: Discover | None,
        refresh: timedelta | None,
        open_stores: int,
    ) -> None:
        if stores is not None and discover is not None:
            raise ArgumentValueError("pass stores or discover, not both: discover can return the fixed stores too")
        self._mode = defaults.mode
        self.errors = ErrorTexts(defaults.redact)
        per_server = check.count("open_stores", open_stores)
        maker = StoreMaker(defaults)
        self.registry = Registry(maker)
        self.transactions = TransactionCheck(maker.transactions, self.registry)
        self.stores: OpenStores = (AsyncOpenStores if self._mode == "async" else SyncOpenStores)(per_server)
        self.discovery: Discovery | None = None
        if discover is not None:
            interval = check.duration("refresh", DEFAULT_REFRESH if refresh is None else refresh)
            self.discovery = Discovery(discover, interval, self.registry, self.errors)
        elif refresh is not None:
            raise ArgumentTypeError("refresh needs discover: a fixed list of stores is not refreshed")
        else:
            self._set(configs_of(stores))

    def _set(self, configs: dict[str, StoreConfig]) -> None:
        """Makes this the fixed list of stores. Its options are checked before any I/O."""
        distinct = DistinctStores()
        for key, config in configs.items():
            try:
                distinct.add(self.registry.check(key, config))
            except PostroomError as error:
                raise with_store(key, error) from None
        self.registry.replace(configs)

    def refresh(self, *, if_old: bool = False) -> Program[float]:
        """Reads the list of stores again. Returns the seconds until the next time; infinite for a fixed list.

        `if_old`: only if it is time."""
        if self.discovery is None:
            return math.inf
        if not if_old or not self.discovery.pause:
            change = yield from self.discovery.refresh(self._mode)
            if change is not None:
                yield from self._close(change)
        return self.discovery.pause

    def _close(self, change: Change) -> Program[None]:
        """Closes the stores that were removed or have another configuration, after the calls that use them."""
        yield call(self.stores.detach, [*change.removed, *change.configured])
