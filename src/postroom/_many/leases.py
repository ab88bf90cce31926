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
GIVE_BACK_SECONDS = 3.0
"""How long a stop gives soft leases back."""


async def give_back(tenants: Iterable[Tenant], stores: AsyncOpenStores, process: UUID) -> None:
    """Gives the soft leases of stores back, so that another process looks at them at once.

    One store at a time, so that a stop needs no more connections than looks do. A lease that is not given back in time
    ends by itself.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(GIVE_BACK_SECONDS):
            for tenant in tenants:
                with suppress(Exception):  # the store may have failed
                    await _give_back(tenant, stores, process)


async def _give_back(tenant: Tenant, stores: AsyncOpenStores, process: UUID) -> None:
    async with stores.using(tenant) as store:
        if isinstance(store, Attendant):
            await store.attend([], process, NO_LEASE)
    await stores.close_idle(tenant)
