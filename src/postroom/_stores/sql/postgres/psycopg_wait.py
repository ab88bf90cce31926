"""What psycopg waits for: a limit for servers that do not respond, and a record of failed statements.

psycopg passes everything that it waits for to the connection's method `wait`, whatever cursor runs it. asyncpg has such
a limit (`command_timeout`) and reports failed statements. The time limits of TCP do not help where the server's host
acknowledges what is sent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from postroom._stores.sql.network import RecordError
from postroom._stores.sql.postgres.settings import MAINTENANCE_SECONDS
from postroom._stores.sql.transactions import Connection

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn

R = TypeVar("R")


class ResponseTimeout:
    """A base of connection classes: closes the connection if the server does not respond for some seconds.

    `wait` gets a generator, in both modes. It resumes the generator several times a second, with what the socket is
    ready for, or with nothing.
    """

    pgconn: PGconn
    response_timeout: float
    has_timed_out = False
    _operational_error: type[Exception]

    @classmethod
    def below(cls, connection_class: type, error_class: type[Exception], seconds: float) -> type:
        """Returns a class of connections with this limit."""
        members = {
            "response_timeout": seconds,
            "_operational_error": error_class,
            "__module__": connection_class.__module__,
        }
        return type(connection_class.__name__, (cls, connection_class), members)

    @classmethod
    @contextmanager
    def extended(cls, connection: Connection) -> Iterator[None]:
        """Extends the limit of a connection, if it has one, for statements that may take long."""
        if not isinstance(connection, cls):
            yield
            return
        connection.response_timeout = MAINTENANCE_SECONDS
        try:
            yield
        finally:
            del connection.response_timeout

    def wait(self, waiting: PQGen[object], *args: object, **options: object) -> object:
        if options.get("timeout") is None:  # waiting for notifications has its own limit
            waiting = self._limited(waiting)
        return super().wait(waiting, *args, **options)  # type: ignore[misc]

    def _limited(self, waiting: PQGen[R]) -> PQGen[R]:
        last_response = time.monotonic()
        try:
            wanted = next(waiting)
            while True:
                ready = yield wanted
                if ready:
                    last_response = time.monotonic()
                elif time.monotonic() > last_response + self.response_timeout:
                    raise self._close()
                wanted = waiting.send(ready)
        except StopIteration as stop:
            value: R = stop.value
            return value

    def _close(self) -> BaseException:
        """Closes the socket and returns the error. As with any lost connection, the server may have done the work."""
        self.has_timed_out = True
        self.pgconn.finish()
        handled = sys.exception()
        if isinstance(handled, asyncio.CancelledError | KeyboardInterrupt):
            return handled  # the statement was cancelled, and psycopg waits for the server to confirm it
        return self._operational_error(f"the server has said nothing for {self.response_timeout:g} seconds")


@contextmanager
def recording_errors(connection: Connection, record: RecordError) -> Iterator[None]:
    """Passes the errors of all statements of an async connection to `record`."""
    wait = connection.wait

    async def recording_wait(*args: object, **options: object) -> object:
        try:
            return await wait(*args, **options)
        except Exception as error:
            record(error)
            raise

    connection.wait = recording_wait
    try:
        yield
    finally:
        del connection.wait
