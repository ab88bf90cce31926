"""The driver for PostgreSQL: its dialect, arrays as parameters, and a listener."""

from __future__ import annotations

from typing import Any

from postroom._kernel.local import PerLoop
from postroom._kernel.program import Program, call
from postroom._stores.sql.network import Adapter, NetworkDriver, NetworkVerbs, ServerDialect, SyncNetworkDriver
from postroom._stores.sql.postgres.engine import PostgresEngine
from postroom._stores.sql.postgres.errors import ERRORS
from postroom._stores.sql.postgres.listener import Listener
from postroom._stores.sql.postgres.settings import BEGIN, set_lock_timeout
from postroom._stores.sql.statements import Many
from postroom._stores.sql.transactions import Connection

DIALECT = ServerDialect(
    ERRORS,
    BEGIN,
    set_lock_timeout,
    advice={
        "psycopg2.connection": (
            "its connection is one of psycopg2: use psycopg 3, with SQLAlchemy by postgresql+psycopg://"
        )
    },
)


class PostgresVerbs(NetworkVerbs):
    """The verbs of both modes."""

    dialect = DIALECT
    engine: PostgresEngine

    def _perform_many(self, step: Many, adapter: Adapter, connection: Connection) -> Program[int]:
        """Passes each column as an array, in one round trip. The statement returns a row for each changed row."""
        text = self.engine.statements[step.name]
        columns = dict(zip(step.columns, map(list, zip(*step.rows, strict=True)), strict=True))
        return len((yield call(adapter.fetch, connection, text.numbered, self._bind(text.parameters, columns))))


class PostgresDriver(PostgresVerbs, NetworkDriver):
    """For async code."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._listeners = PerLoop(lambda: Listener(self._pool, self.engine.channel))

    async def wait(self) -> frozenset[str]:
        """Waits for a notification; returns the keys of the boxes with work, or an empty set for all boxes."""
        self._check_open()
        return await self._listeners.get().wait()

    async def close(self) -> None:
        self._closed = True
        listener = self._listeners.pop()
        if listener is not None:
            await listener.close()
        await super().close()


class SyncPostgresDriver(PostgresVerbs, SyncNetworkDriver):
    """For sync code."""
