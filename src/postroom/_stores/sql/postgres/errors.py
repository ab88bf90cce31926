"""The error codes of PostgreSQL (SQLSTATE), and what they mean for a driver."""

from __future__ import annotations

from postroom._stores.sql.error_codes import ErrorCodes


def sqlstate(error: BaseException | None) -> str | None:
    """Returns the SQLSTATE of an error of the server. asyncpg and psycopg have it under the same name."""
    return getattr(error, "sqlstate", None)


def _describe(error: BaseException) -> str:
    """By type, SQLSTATE and constraint. The text of a server's error may quote values, so it is left out."""
    constraint = _constraint(error)
    named = f", constraint {constraint}" if constraint else ""
    return f"{type(error).__name__}, SQLSTATE {sqlstate(error)}{named}"


def _constraint(error: BaseException | None) -> str | None:
    """asyncpg has it on the error, psycopg in its diagnostics."""
    holder = error if hasattr(error, "constraint_name") else getattr(error, "diag", None)
    return getattr(holder, "constraint_name", None)


ERRORS = ErrorCodes(
    code_of=sqlstate,
    describe=_describe,
    transient=(
        "08",  # connection exception
        "40001",  # serialization failure
        "40P01",  # deadlock detected
        "55P03",  # lock not available: the lock timeout has passed
        "57P",  # operator intervention: the server shuts down or starts
        "53300",  # too many connections
        "53200",  # out of memory, also for the table of locks
        "25006",  # read-only transaction: the server is a standby, and after a failover another host is the primary
    ),
    connection_lost=("08", "57P", "25006"),
    lock_timeout=("55P03",),
    aborted=("25P02",),
    lost_classes=frozenset(
        {"ConnectionDoesNotExistError", "InterfaceError", "OperationalError", "InternalClientError", "PoolTimeout"}
    ),
)
