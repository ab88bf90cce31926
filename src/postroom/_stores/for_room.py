"""The wrappers around the store of a room.

A call of a box passes them from the first to the last:

1. `ExchangingStore`: gives every store the verb `exchange`.
2. `ObservedStore`: emits an event for each verb.
3. `RetryingStore`: retries transient errors.
4. `OrderCheckedStore`: compares the order of a box with the recorded one, once. It has the name that the room gives.
5. `CoalescedStore`: lets concurrent puts, begins and settles share a transaction, for async stores that declare
   `sharing`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import cast

from postroom._kernel.local import PerLoop
from postroom._kernel.observer import Observer
from postroom._kernel.program import Mode
from postroom._kernel.retry import StorageRetry
from postroom._kernel.texts import ErrorTexts, Redact
from postroom._kernel.verified import Verified
from postroom._room_store import WorkerStore
from postroom._stores.coalesced import CoalescedStore, Coalescible
from postroom._stores.exchanging import ExchangingStore
from postroom._stores.modes import CoroutineStore, PlainStore
from postroom._stores.observed import ObservedStore
from postroom._stores.order_checked import OrderCheckedStore
from postroom._stores.retrying import RetryingStore
from postroom._stores.wrapper import AnyStore


def wrap_for_room(
    store: object,
    mode: Mode,
    observers: Sequence[Observer] = (),
    retry: StorageRetry = StorageRetry.NONE,
    redact: Redact | None = None,
    *,
    name: str | None = None,
    verified: Verified | None = None,
) -> WorkerStore:
    """Returns the store with all wrappers. In a sync room its verbs are plain methods, whatever the type says.

    `name`: the name of the store in events and log records, in place of its own one. `verified`: what was checked by
    earlier stores of this database.
    """
    errors = ErrorTexts(redact)
    checked = (verified or Verified()).orders
    wrapped: AnyStore
    if mode == "async":
        wrapped = CoalescedStore(store) if isinstance(store, Coalescible) else store
        wrapped = OrderCheckedStore(wrapped, _Locks(), checked, name=name)
        wrapped = RetryingStore(wrapped, retry, asyncio.sleep)
        wrapped = ExchangingStore(ObservedStore(wrapped, observers, errors))
    else:
        wrapped = OrderCheckedStore(CoroutineStore(store), _no_lock, checked, name=name)
        wrapped = RetryingStore(wrapped, retry, _sleep)
        wrapped = PlainStore(ExchangingStore(ObservedStore(wrapped, observers, errors)))
    return cast("WorkerStore", wrapped)


class _Locks:
    """One lock for each name, and for each event loop."""

    def __init__(self) -> None:
        self._locks: PerLoop[dict[str, asyncio.Lock]] = PerLoop(dict)

    def __call__(self, name: str) -> asyncio.Lock:
        return self._locks.get().setdefault(name, asyncio.Lock())


def _no_lock(_name: str) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs this coroutine
