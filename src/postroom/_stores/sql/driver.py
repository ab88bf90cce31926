"""What a driver does: it runs a program in a transaction, its own or the caller's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from postroom._stores.sql.engine import Engine
from postroom._stores.sql.statements import SqlProgram
from postroom.spi import Tx


class Driver(Protocol):
    """Runs programs on connections. The methods of an async driver are coroutines."""

    @property
    def engine(self) -> Engine: ...
    @property
    def name(self) -> str:
        """The name of the database in logs and events, without credentials."""

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of the database, without credentials. Empty if they are not known."""

    def transact(
        self,
        program: Callable[[], SqlProgram[object]],
        *,
        tx: Tx = None,
        write: bool = True,
        lock_timeout: float | None = None,
    ) -> object:
        """Runs a program in one transaction and returns its result. All of it is done, or nothing.

        Without `tx`, the transaction is committed before this returns. With `tx`, the program runs in the caller's
        transaction, which is not committed here. `lock_timeout`: seconds to wait for a row lock before an error that
        `is_locked` is raised. It applies without `tx` only, and only to engines with concurrent writers.
        """

    def transaction(self) -> Any:
        """Returns a context manager: an open transaction on its own connection, committed at the end."""

    def is_transient(self, error: BaseException) -> bool:
        """Returns True if a later attempt may succeed: locked, busy, a deadlock, a lost connection."""

    def is_locked(self, error: BaseException) -> bool:
        """Returns True if a lock was not granted within `lock_timeout`."""

    def check_not_inside(self, tx: Tx) -> None:
        """Raises if a write without `tx` would wait for a lock that its own task holds."""

    def close(self) -> object: ...


class AsyncDriver(Driver, Protocol):
    """A driver for async code, which has workers."""

    def wait(self) -> Awaitable[frozenset[str]]:
        """Waits for a notification that there may be work, as `Waker` says. For engines that notify."""
