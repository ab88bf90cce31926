"""What a message costs the server: WAL, commits and statements; and what it leaves behind to be cleaned."""

from __future__ import annotations

from typing import NamedTuple

from tools.servers.postgres import PostgresServer

from benchmarks.common.environment import stderr
from benchmarks.common.plan import BULK
from benchmarks.common.report import Section
from benchmarks.postgres.environment import Environment
from benchmarks.postgres.plan import BATCH, BATCHES
from benchmarks.rounds import Case

COUNTING = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top", "autovacuum": "off"}
"""A separate server for counting. Nothing is timed on it."""


PIECE = 10_000


class Count(NamedTuple):
    wal: int
    commits: int
    statements: int

    def per_message(self, before: Count, messages: int) -> list[float]:
        return [(now - then) / messages for now, then in zip(self, before, strict=True)]


def costs(env: Environment) -> Section:
    """Bulk enqueue, then a drain. Workers end before it is counted: only then do all their figures arrive."""
    figures: dict[str, tuple[list[float], list[float]]] = {}
    with PostgresServer(COUNTING) as server:
        server.query("CREATE EXTENSION pg_stat_statements")
        counting = Environment(server, env.plan, env.notes)
        counted, names = env.plan.counted
        for name in env.present(*names):
            stderr.print(f"  counting {name}")
            messages = min(counted, env.plan.messages("drain", name))
            database = counting.new_database()
            counting.worker(name, database).close()
            server.query("CHECKPOINT")
            before = _count(server, database)
            with counting.worker(name, database, install=False) as worker:
                worker.ask("fill", count=messages, size=BULK)
            between = _count(server, database)
            with counting.worker(name, database, install=False) as worker:
                worker.drain(BATCH if BATCH in BATCHES[name] else BATCHES[name][-1], messages)
            after = _count(server, database)
            figures[name] = between.per_message(before, messages), after.per_message(between, messages)
    cases = [
        Case(f"{phase}: {what}", {name: [found[when][index]] for name, found in figures.items()})
        for when, phase in enumerate(("enqueue in bulk", f"drain in batches of {BATCH}"))
        for index, what in enumerate(("WAL bytes", "commits", "statements"))
    ]
    return Section("what the server does", cases, "per message")


def _count(server: PostgresServer, database: str) -> Count:
    [(wal,)] = server.query("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
    [(commits,)] = server.query("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", database)
    [(statements,)] = server.query(
        "SELECT coalesce(sum(s.calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid"
        " WHERE d.datname = %s",
        database,
    )
    return Count(int(wal), int(commits), int(statements))


def flow(env: Environment) -> Section:
    """Many messages in and out, 10,000 at a time, with autovacuum as it is by default."""
    cases = []
    for name in env.present(*env.plan.flow):
        total = env.plan.flow[name]
        stderr.print(f"  {total:,} messages through {name}")
        database = env.new_database()
        spent = 0.0
        with env.worker(name, database) as worker:
            for _ in range(total // PIECE):
                worker.ask("fill", count=PIECE, size=BULK)
                span = worker.drain(BATCHES[name][-1], PIECE)
                spent += span.ended - span.began
        figures = {"drained/s": [total / spent], **_left(env, database)}
        cases.append(Case(f"{name}, {total:,} messages", figures))
    return Section("what messages leave behind", cases, "after the flow")


def _left(env: Environment, database: str) -> dict[str, list[float]]:
    rows = env.query(
        database,
        "SELECT coalesce(sum(n_dead_tup), 0)::float, coalesce(sum(autovacuum_count), 0)::float,"
        " coalesce(sum(pg_total_relation_size(relid)) FILTER (WHERE n_tup_del > 0), 0)::float / 1e6,"
        " coalesce(sum(pg_total_relation_size(relid)), 0)::float / 1e6"
        " FROM pg_stat_user_tables",
    )
    names = ("dead rows", "autovacuum runs", "MB of tables that lost rows", "MB of all tables")
    return {name: [float(str(value))] for name, value in zip(names, rows[0], strict=True)}
