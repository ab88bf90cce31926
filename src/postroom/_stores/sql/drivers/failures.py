"""The statement that aborted a transaction on PostgreSQL.

After a statement fails, the server rejects every other statement of the transaction, and does not repeat the cause.
So the errors of a handler's statements are noted while its transaction is open.
"""

from __future__ import annotations

from typing import Any

ABORTED = "25P02"
"""The SQLSTATE of every statement after the one that failed."""


def sqlstate(error: BaseException | None) -> str | None:
    return getattr(error, "sqlstate", None)


def is_aborted(error: BaseException | None) -> bool:
    """Whether a statement was rejected because an earlier one failed. SQLAlchemy's errors have the driver's inside."""
    return ABORTED in (sqlstate(error), sqlstate(getattr(error, "orig", None)))


class Failures:
    """The last error of a statement in one transaction. It is the one that aborted the transaction, if one did: an
    earlier one was rolled back to a savepoint, and later statements fail with `ABORTED`, which is not noted."""

    def __init__(self) -> None:
        self.last: str | None = None
        """By type, SQLSTATE and constraint. The text of a server's error may quote values, so it is left out."""

    def note(self, error: BaseException | None) -> None:
        state = sqlstate(error)
        if state is None or state == ABORTED:
            return
        constraint = _constraint(error)
        named = f", constraint {constraint}" if constraint else ""
        self.last = f"{type(error).__name__}, SQLSTATE {state}{named}"


def _constraint(error: Any) -> str | None:
    """asyncpg has it on the error, psycopg in its diagnostics."""
    if hasattr(error, "constraint_name"):
        return error.constraint_name
    return getattr(getattr(error, "diag", None), "constraint_name", None)
