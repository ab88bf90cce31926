"""One suite for both colours: a sync store, dressed as an async one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from postroom.spi import Store

_VERBS = (
    *("put", "claim", "settle", "renew", "reap", "replay", "purge", "find", "counts"),
    *("record", "mark", "cancel", "record_order", "turn", "boxes", "migrate", "schema_version", "close"),
)


class _AsyncView:
    """Has those of the verbs that its store has, so that it looks like the same kind of store."""

    def __init__(self, store: Any, *, threads: bool) -> None:
        self.name = store.name
        self.features = store.features
        for name in _VERBS:
            if hasattr(store, name):
                setattr(self, name, _awaitable(getattr(store, name), threads=threads))
        if hasattr(store, "schema_script"):
            self.schema_script = store.schema_script
        if hasattr(store, "transaction"):
            self.transaction = _async_context(store.transaction)


def _awaitable(verb: Callable[..., Any], *, threads: bool) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(verb)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if threads:
            return await asyncio.to_thread(verb, *args, **kwargs)
        return verb(*args, **kwargs)

    return call


def _async_context(begin: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        with begin() as tx:
            yield tx

    return transaction


def as_async(store: Any, *, threads: bool = True) -> Store:
    """A store with plain methods as one whose methods are awaited, for tests that are written once.

    Each verb runs in a thread, so that tasks which call at the same time really do meet in the store. With
    `threads=False` it runs where it is called: for a store that is bound to its thread.
    """
    return cast("Store", _AsyncView(store, threads=threads))
