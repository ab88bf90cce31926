"""Sync stores for tests that are written for async stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import cast

from postroom._stores.modes import CoroutineStore
from postroom._stores.wrapper import AsyncVerb
from postroom.spi import Store, Transactor, Tx, Verb


def as_async(store: object, *, threads: bool = True) -> Store:
    """Returns an async view of a sync `store`, for tests that are written once for both modes.

    The view has the verbs that the store has. With `threads`, each call runs in a thread, so that the calls of several
    tasks overlap in the store. With `threads=False` it runs in the thread of the event loop, for a store that only its
    own thread may use.
    """
    return cast("Store", _ThreadedStore(store) if threads else _AsyncStore(store))


class _AsyncStore(CoroutineStore):
    """Has an async context manager as `transaction`, too."""

    def __init__(self, inner: object) -> None:
        super().__init__(inner)
        if isinstance(inner, Transactor):
            self.transaction = _async_transaction(cast("Callable[[], AbstractContextManager[Tx]]", inner.transaction))


class _ThreadedStore(_AsyncStore):
    """Calls the verbs of the store in threads."""

    def around(self, verb: Verb, function: Callable[..., object]) -> AsyncVerb:
        async def call(*args: object, **kwargs: object) -> object:
            return await asyncio.to_thread(function, *args, **kwargs)

        return call


def _async_transaction(
    begin: Callable[[], AbstractContextManager[Tx]],
) -> Callable[[], AbstractAsyncContextManager[Tx]]:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Tx]:
        with begin() as tx:
            yield tx

    return transaction
