"""A Redis server; a place is one of its databases."""

from __future__ import annotations

from tools.servers.redis import RedisServer

from benchmarks.common import stage
from benchmarks.redis.plan import Plan
from benchmarks.redis.subjects import LINEUP

PLACES = {"databases": "1024"}
"""The setting that makes room for them."""


class Stage(stage.Stage):
    plan: Plan

    def __init__(self, server: RedisServer, plan: Plan, notes: list[str] | None = None) -> None:
        super().__init__(plan, LINEUP, notes)
        self.server = server
        self._databases = 0

    def place(self) -> str:
        self._databases += 1
        return str(self._databases)

    def url(self, place: str) -> str:
        return self.server.url(int(place))

    def clear(self) -> None:
        """Remove everything: what one case has left must not cost the next one memory, or a longer snapshot."""
        self.server.query("FLUSHALL")
