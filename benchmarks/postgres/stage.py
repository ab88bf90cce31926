"""A PostgreSQL server; a place is a database."""

from __future__ import annotations

from tools.servers.postgres import PostgresServer

from benchmarks.common import stage
from benchmarks.postgres.plan import Plan
from benchmarks.postgres.subjects import LINEUP


class Stage(stage.Stage):
    plan: Plan

    def __init__(self, server: PostgresServer, plan: Plan, notes: list[str] | None = None) -> None:
        super().__init__(plan, LINEUP, notes)
        self.server = server
        self._databases = 0

    def place(self) -> str:
        self._databases += 1
        name = f"bench_{self._databases}"
        self.server.create_database(name)
        return name

    def url(self, place: str) -> str:
        return self.server.url(place)

    def settle(self, place: str) -> None:
        self.query(place, "VACUUM ANALYZE")

    def query(self, database: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        return self.server.query(statement, *parameters, database=database)
