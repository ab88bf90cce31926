"""A PostgreSQL server with one database per contender and case."""

from __future__ import annotations

from tools.servers.postgres import PostgresServer

from benchmarks.common import environment
from benchmarks.postgres.plan import Plan
from benchmarks.postgres.subjects import CONTENDERS


class Environment(environment.Environment):
    plan: Plan

    def __init__(self, server: PostgresServer, plan: Plan, notes: list[str] | None = None) -> None:
        super().__init__(plan, CONTENDERS, notes)
        self.server = server
        self._databases = 0

    def new_database(self) -> str:
        self._databases += 1
        name = f"bench_{self._databases}"
        self.server.create_database(name)
        return name

    def url(self, database: str) -> str:
        return self.server.url(database)

    def settle(self, database: str) -> None:
        self.query(database, "VACUUM ANALYZE")

    def query(self, database: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        return self.server.query(statement, *parameters, database=database)
