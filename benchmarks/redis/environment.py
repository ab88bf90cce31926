"""A Redis server with one numbered database per contender and case."""

from __future__ import annotations

from tools.servers.redis import RedisServer

from benchmarks.common import environment
from benchmarks.redis.plan import Plan
from benchmarks.redis.subjects import CONTENDERS

DATABASES = {"databases": "1024"}
"""The setting that makes room for them."""


class Environment(environment.Environment):
    plan: Plan

    def __init__(self, server: RedisServer, plan: Plan, notes: list[str] | None = None) -> None:
        super().__init__(plan, CONTENDERS, notes)
        self.server = server
        self._databases = 0

    def new_database(self) -> str:
        self._databases += 1
        return str(self._databases)

    def url(self, database: str) -> str:
        return self.server.url(int(database))

    def clear(self) -> None:
        """Remove everything: what one case has left must not cost the next one memory, or a longer snapshot."""
        self.server.query("FLUSHALL")
