"""Private Valkey servers: Valkey is a Redis of other makers, with the same commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.servers.redis import Fsync, RedisServer, find_valkey

__all__ = ["ValkeyServer", "find_valkey"]


class ValkeyServer(RedisServer):
    """A separate Valkey server."""

    name = "valkey"

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
        binary: Path | None = None,
    ) -> None:
        super().__init__(settings, appendonly=appendonly, appendfsync=appendfsync, binary=binary or find_valkey())
