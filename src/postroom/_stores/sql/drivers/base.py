"""What a driver does: run a program in a transaction, its own or the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from postroom._kernel.program import Program
from postroom._stores.sql.engines.base import Engine


class Driver(Protocol):
    """I/O, and nothing else. The methods of an async driver are coroutines."""

    @property
    def engine(self) -> Engine: ...
    @property
    def name(self) -> str:
        """Which database, without credentials."""

    @property
    def addresses(self) -> frozenset[str]:
        """What `SqlVerbs.addresses` says."""

    def transact(
        self,
        program: Callable[[], Program[Any]],
        *,
        tx: Any = None,
        write: bool = True,
        patience: float | None = None,
    ) -> Any:
        """Run a program in one transaction.

        Without `tx`, in a transaction of its own that is committed before this returns; otherwise inside the caller's,
        which is never committed here. All of the program happens, or nothing of it. `patience`: how many seconds it
        waits for a lock, where writers work side by side, in a transaction of its own; then it fails.
        """

    def transaction(self) -> Any:
        """A context manager: an open transaction on a connection of its own, committed at the end."""

    def is_transient(self, error: BaseException) -> bool:
        """Whether the database said no only for now: locked, busy, a deadlock, a lost connection."""

    def is_locked(self, error: BaseException) -> bool:
        """Whether a lock was not to be had in time, where writers work side by side."""

    def check_not_inside(self, tx: Any) -> None:
        """Raise where a write without `tx` would wait for a lock that its own task holds."""

    def wait(self) -> Any:
        """Where the engine notifies: wait for a hint that there may be work, as `Waker` says."""

    def close(self) -> Any: ...
