"""Calls a function for many stores: some at a time on each server, and the error of one does not end the others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from postroom._many.config import StoreResult
from postroom._many.servers import AsyncOpenStores
from postroom._many.tenant import Tenant
from postroom._room_store import WorkerStore

R = TypeVar("R")


async def call_each(
    tenants: Iterable[Tenant],
    stores: AsyncOpenStores,
    work: Callable[[WorkerStore], Awaitable[R]],
    parallel: int,
    progress: Callable[[StoreResult[R]], object] | None,
) -> list[StoreResult[R]]:
    """Calls `work` with each store, at most `parallel` of each server at the same time. Calls `progress` after each."""
    most = min(parallel, stores.per_server)
    limits: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(most))

    async def call_one(tenant: Tenant) -> StoreResult[R]:
        async with limits[tenant.server]:
            result: StoreResult[R]
            try:
                async with stores.using(tenant) as store:
                    result = StoreResult(tenant.key, await work(store), None)
            except Exception as error:  # noqa: BLE001 - it is returned
                result = StoreResult(tenant.key, None, error)
            await stores.close_idle(tenant)
        if progress is not None:
            progress(result)
        return result

    return await asyncio.gather(*map(call_one, tenants))
