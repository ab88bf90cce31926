"""Migrations of many stores: some at a time on each server, and the failures of some do not end the others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from postroom._kernel.program import Program, async_runner, call
from postroom._many.config import StoreMigrated
from postroom._many.servers import OpenStores
from postroom._many.tenant import Tenant
from postroom._many.tenants import Tenants
from postroom.spi import Migrator


def migrate_one(tenant: Tenant, stores: OpenStores) -> Program[StoreMigrated]:
    """Makes or updates the tables of one store. Returns the error, if there is one."""
    try:
        opened = yield call(stores.enter, tenant)
        try:
            store: object = opened.store
            versions: list[int] = (yield call(store.migrate)) if isinstance(store, Migrator) else []
        finally:
            yield call(stores.leave, opened)
        yield call(stores.close_idle, tenant)
    except Exception as error:  # noqa: BLE001 - it is returned
        return StoreMigrated(tenant.key, [], error)
    return StoreMigrated(tenant.key, versions, None)


_migrate = async_runner(migrate_one)


async def migrate_all(
    tenants: Tenants, parallel: int, progress: Callable[[StoreMigrated], object] | None
) -> list[StoreMigrated]:
    """Migrates all stores, at most `parallel` of each server at the same time. Calls `progress` after each."""
    limits: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(parallel))

    async def migrate(tenant: Tenant) -> StoreMigrated:
        async with limits[tenant.server]:
            migrated = await _migrate(tenant, tenants.stores)
        if progress is not None:
            progress(migrated)
        return migrated

    return await asyncio.gather(*map(migrate, tenants.registry))
