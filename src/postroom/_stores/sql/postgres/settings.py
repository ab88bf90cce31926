"""Settings of a connection to PostgreSQL: query planning, the begin of transactions, timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""The programs rely on this level: each statement sees what others have committed. A database's default may differ."""

POOL_SIZE = 10
RESERVED_FOR_VERBS = 2
"""Connections of a pool that handlers with open transactions must not use up."""

# A queue is full at one moment and empty at the next, so its statistics are out of date. An index scan with nested
# loops is the right plan for our statements in any case.
_PLANNER_METHODS_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")

SERVER_SETTINGS = {
    "application_name": "postroom",
    **dict.fromkeys(_PLANNER_METHODS_OFF, "off"),
    # So one plan per statement is enough. Planning again took a fifth of the time of a claim.
    "plan_cache_mode": "force_generic_plan",
    # No statement runs so long that compiling it would pay.
    "jit": "off",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",
}
"""The session settings of connections in pools that Postroom makes."""

RESTORE_PLANNER = "; ".join(
    [*(f"SET LOCAL {setting} = on" for setting in _PLANNER_METHODS_OFF), "SET LOCAL plan_cache_mode = auto"]
)
"""At the beginning of a handler's transaction: our planner settings do not suit the user's statements."""


def set_lock_timeout(seconds: float) -> str:
    return f"SET LOCAL lock_timeout = {max(round(seconds * 1000), 1)}"


MAINTENANCE_SECONDS = 24 * 3600.0
"""The response timeout of statements that may take long, such as migrations of large tables."""


@dataclass(frozen=True)
class PoolSettings:
    """The settings of a pool that Postroom makes."""

    url: str = field(repr=False)
    """With the password."""
    size: int = POOL_SIZE
    connect_timeout: float = 10.0
    checkout_timeout: float = 3.0
    """Seconds to wait for a connection of the pool, before a connection beside it is tried."""
    response_timeout: float = 30.0
    """Seconds after which a server that does not respond counts as lost."""
    pgbouncer: bool = False
    """Behind PgBouncer in transaction mode a session is shared: nothing may be prepared, set or listened to."""
    primary_only: bool = False
    """The URL has several hosts and does not say which to use: use the one that accepts writes."""
    server_settings: Mapping[str, str] = field(default_factory=dict)
    handler_settings: str = ""
    """Statements at the beginning of a handler's transaction."""

    def libpq_parameters(self) -> dict[str, object]:
        """Returns the connection parameters for client libraries that use libpq, besides the URL."""
        parameters: dict[str, object] = {
            "connect_timeout": int(self.connect_timeout),
            # A host that disappears without closing the connection is noticed after half a minute. The kernel's default
            # is a quarter of an hour.
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": int(self.response_timeout * 1000),
        }
        if self.server_settings:
            escaped = {name: value.replace(" ", r"\ ") for name, value in self.server_settings.items()}
            parameters["options"] = " ".join(f"-c {name}={value}" for name, value in escaped.items())
        if self.primary_only:
            parameters["target_session_attrs"] = "read-write"
        return parameters

    def asyncpg_parameters(self) -> dict[str, object]:
        """Returns the connection parameters for asyncpg, besides the URL."""
        parameters: dict[str, object] = {
            "server_settings": self.server_settings,
            "timeout": self.connect_timeout,
            "command_timeout": self.response_timeout,
        }
        if self.primary_only:
            parameters["target_session_attrs"] = "read-write"
        if self.pgbouncer:
            parameters["statement_cache_size"] = 0
        return parameters
