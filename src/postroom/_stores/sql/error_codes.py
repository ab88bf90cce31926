"""How the errors of a database server are classified, by the codes that the server sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorCodes:
    """The error codes of one kind of server. A code stands for all codes that begin with it."""

    code_of: Callable[[BaseException | None], str | None]
    """Returns the server's code; None if the error is not the server's."""
    describe: Callable[[BaseException], str]
    """Returns a text without values from the database, for an error that has a code."""
    transient: tuple[str, ...]
    """A later attempt may succeed."""
    connection_lost: tuple[str, ...]
    """The connection cannot be used again."""
    lock_timeout: tuple[str, ...]
    """A lock was not granted in time."""
    aborted: tuple[str, ...] = ()
    """An earlier statement of the transaction has failed, and the server rejects all others until a rollback."""
    lost_classes: frozenset[str] = frozenset()
    """Error classes of client libraries that mean a lost connection, by name: not all libraries are installed."""

    def is_transient(self, error: BaseException) -> bool:
        error = _client_error(error)
        code = self.code_of(error)
        if code is not None:
            return code.startswith(self.transient)
        return isinstance(error, OSError) or self._has_lost_class(error)

    def is_connection_lost(self, error: BaseException) -> bool:
        """Returns True if the connection, and not only the statement, has failed."""
        error = _client_error(error)
        code = self.code_of(error)
        if code is not None:
            return code.startswith(self.connection_lost)
        # A cancelled statement may still run on the server, so its connection is not used again.
        return isinstance(error, OSError | asyncio.CancelledError) or self._has_lost_class(error)

    def is_lock_timeout(self, error: BaseException) -> bool:
        return (self.code_of(error) or "-").startswith(self.lock_timeout)

    def is_aborted(self, error: BaseException | None) -> bool:
        """Returns True if the server rejected a statement because an earlier one had failed."""
        return error is not None and (self.code_of(_client_error(error)) or "-").startswith(self.aborted)

    def _has_lost_class(self, error: BaseException) -> bool:
        return any(base.__name__ in self.lost_classes for base in type(error).__mro__)


def client_error_name(error: BaseException) -> str:
    return type(_client_error(error)).__name__


def _client_error(error: BaseException) -> BaseException:
    """Returns the error of the client library. Errors of SQLAlchemy have it inside."""
    inside = getattr(error, "orig", None)
    return inside if isinstance(inside, BaseException) else error


class FailedStatements:
    """The last failed statement of one transaction.

    It is the statement that aborted the transaction, if one did: an earlier one was rolled back to a savepoint, and the
    server rejects later ones with a code of `aborted`, which is not recorded.
    """

    def __init__(self, codes: ErrorCodes) -> None:
        self._codes = codes
        self.last: str | None = None

    def record(self, error: BaseException | None) -> None:
        if error is None or self._codes.code_of(error) is None or self._codes.is_aborted(error):
            return
        self.last = self._codes.describe(error)
