"""A hub on PostgreSQL: LISTEN and NOTIFY in one database, for the stores of all servers."""

from __future__ import annotations

from collections.abc import Collection

from postroom._stores.sql.network import AsyncPool
from postroom._stores.sql.postgres.listener import Listener

HUB_CONNECTIONS = 2
"""One listens, one notifies."""
_NOTIFY = "SELECT pg_notify($1, text) FROM unnest($2::text[]) AS texts (text)"


class PostgresChannel:
    """See `hub.Channel`."""

    def __init__(self, pool: AsyncPool, name: str) -> None:
        self._pool, self._name = pool, name
        self._listener = Listener(pool, name, repeats=False)

    async def send(self, texts: list[str]) -> None:
        """Sends the texts in one statement."""
        checkout = await self._pool.acquire()
        broken = True
        try:
            await self._pool.adapter.fetch(checkout.connection, _NOTIFY, (self._name, texts))
            broken = False
        finally:
            await self._pool.release(checkout, broken=broken)

    async def receive(self) -> Collection[str]:
        """Waits for texts."""
        return await self._listener.wait()

    async def close(self) -> None:
        """Closes both connections."""
        await self._listener.close()
        await self._pool.close()
