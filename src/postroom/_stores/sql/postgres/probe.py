"""Finds databases of one server into which rows were inserted, on one connection."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from postroom._stores.probe import PROBE_SECONDS, PollingProbe
from postroom._stores.sql.network import AsyncPool, Checkout
from postroom._stores.sql.postgres import addresses

COUNTERS = "SELECT datname::text, tup_inserted FROM pg_stat_database WHERE datname = ANY ($1::text[])"
"""Inserts only. A put inserts rows; a look at a store only updates one, so it does not lead to another look."""


class ProbePool(NamedTuple):
    """A pool of one connection."""

    pool: AsyncPool
    needs_transaction: bool
    """Whether a single statement needs one, as behind PgBouncer."""


class _Connected(NamedTuple):
    url: str
    pool: ProbePool
    checkout: Checkout


class PostgresProbe(PollingProbe):
    """Compares the number of inserted rows of each database, in `pg_stat_database`.

    Every database of a server shows the counters of all of them. So there is one connection, to the database of one of
    the stores, and one statement per interval.

    When an insert is counted (PostgreSQL 15 and later, seen on 15.20): a session adds its counts to those of the
    database after a transaction, if it has not done so for a second. Else it does so when it ends, with the first
    transaction after that second, or when it has been idle for 10 seconds. A new session has just done so. Hence the
    delays, besides the interval:

    * none, if the session was quiet for a second, or ends;
    * up to a second, in a session that goes on putting;
    * 10 seconds, if the put is in the first second of a session that stays open and idle.

    Every insert counts, not only that of a message: an ack inserts into the ledger, and the database may have tables of
    the application. So a store that this process works on is returned again, after its messages were settled. This is
    one look for each visit, and one for each interval in a database with other inserts.

    Stores in one database are returned together. A store is not returned if the name of its database is not known (it
    is in a service file, or PgBouncer has another name for it), or if PgBouncer connects to several servers and the
    database is on another one than that of the connection.
    """

    def __init__(self, make_pool: Callable[[str], ProbePool], interval: float = PROBE_SECONDS) -> None:
        """`make_pool`: returns a pool for a URL."""
        super().__init__(interval)
        self._make_pool = make_pool
        self._connected: _Connected | None = None
        self._failures = 0

    def _target_of(self, url: str) -> str | None:
        return addresses.database_of(url)

    async def _read(self, targets: Mapping[str, str]) -> Mapping[str, Hashable]:
        if self._connected is not None and self._connected.url not in self._urls.values():
            await self._disconnect()  # the database of a removed store may be dropped, which a connection would prevent
        if not targets:
            return {}
        try:
            counters = await self._fetch(await self._connect(), sorted(set(targets.values())))
        except BaseException:
            self._failures += 1
            await self._disconnect(broken=True)
            raise
        return {store: counters[database] for store, database in targets.items() if database in counters}

    async def _connect(self) -> _Connected:
        if self._connected is None:
            # After a failure another store is tried: one database may be gone, and one password wrong.
            url = list(self._urls.values())[self._failures % len(self._urls)]
            pool = self._make_pool(url)
            try:
                checkout = await pool.pool.acquire()
            except BaseException:
                await pool.pool.close()
                raise
            self._connected = _Connected(url, pool, checkout)
        return self._connected

    async def _fetch(self, connected: _Connected, databases: list[str]) -> dict[str, int]:
        (pool, needs_transaction), checkout = connected.pool, connected.checkout
        if needs_transaction:
            await pool.begin(checkout)
        rows = await pool.adapter.fetch(checkout.connection, COUNTERS, (databases,))
        if needs_transaction:
            await pool.commit(checkout)
        return {name: inserted for name, inserted in rows}  # noqa: C416 - asyncpg's rows are no tuples

    async def _disconnect(self, *, broken: bool = False) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            try:
                await connected.pool.pool.release(connected.checkout, broken=broken)
            finally:
                await connected.pool.pool.close()

    async def close(self) -> None:
        """Ends a pending `wait` and closes the connection: see `Probe`."""
        await super().close()
        await self._disconnect()
