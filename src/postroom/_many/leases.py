"""The soft leases of a process that stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from postroom._many.servers import AsyncOpenStores
from postroom._many.tenant import Tenant
from postroom.spi import Attendant

NO_LEASE = timedelta(0)
GIVE_BACK_SECONDS, GIVE_BACK_TASKS = 3.0, 4
"""How long a stop gives soft leases back, and how many at a time."""


async def give_back(tenants: Iterable[Tenant], stores: AsyncOpenStores, process: UUID) -> None:
    """Gives the soft leases of stores back, so that another process looks at them at once.

    A lease that is not given back in time ends by itself.
    """
    remaining = iter(tenants)

    async def give_back_some() -> None:
        for tenant in remaining:
            with suppress(Exception):  # the store may have failed
                async with stores.using(tenant) as store:
                    if isinstance(store, Attendant):
                        await store.attend([], process, NO_LEASE)
                await stores.close_idle(tenant)

    with suppress(TimeoutError):
        async with asyncio.timeout(GIVE_BACK_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(GIVE_BACK_TASKS):
                group.create_task(give_back_some())
