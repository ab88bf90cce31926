"""Stores come and go under load, and a server stops and starts: whether a message is lost or handled twice."""

from __future__ import annotations

import asyncio

from tools.servers.postgres import PostgresServer

from benchmarks.common.environment import stderr
from benchmarks.common.report import Section
from benchmarks.many.cases.idle import POSTGRES, SQLITE
from benchmarks.many.environment import Environment, Measured, at_most
from benchmarks.many.ledger import Balance, Ledger
from benchmarks.many.scenes import Outage, replace_stores, stop_and_start
from benchmarks.many.stores import postgres_databases, sqlite_files
from benchmarks.rounds import Case
from benchmarks.table import Aim, at_least

BETWEEN = 20
"""Messages that are handled between two changes."""


def changes(env: Environment) -> Measured:
    count = env.plan.databases
    cases, aims = [], []
    for engine in (SQLITE, POSTGRES):
        stderr.print(f"  {engine}")
        with sqlite_files(count) if engine == SQLITE else postgres_databases(env.server, count) as urls:
            rate, balance = asyncio.run(_replace(Ledger(urls), env.plan.changes))
        cases.append(Case(engine, {"messages/s": [rate], **_figures(balance)}))
        aims.append(_none_lost(f"stores replaced under load, {engine}", balance))
    title = f"{count} stores, half of them in the room; {env.plan.changes} times a store is replaced under load"
    return Measured(Section(title, cases, "messages"), aims)


async def _replace(ledger: Ledger, count: int) -> tuple[float, Balance]:
    rate = await replace_stores(ledger, count, between=BETWEEN)
    return rate, ledger.balance()


def restart(_env: Environment) -> Measured:
    with sqlite_files(10) as files, PostgresServer() as server, postgres_databases(server, 5) as databases:
        outage, balance = asyncio.run(_restart(Ledger({**files, **databases}), server, databases))
    figures = {
        "before, messages/s": [outage.before],
        "stopped, messages/s": [outage.during],
        "seconds to recover": [outage.recovered_seconds],
    }
    case = Case("a PostgreSQL server", {**figures, **_figures(balance)})
    aims = [
        at_least(0.9, outage.during / outage.before, "a stopped server: rate of the other stores / before"),
        at_most(70, outage.recovered_seconds, "a restarted server: seconds until its stores handle messages"),
        _none_lost("a restarted server", balance),
    ]
    title = "10 SQLite files and 5 PostgreSQL databases, whose server stops and starts under load"
    return Measured(Section(title, [case], "see the column"), aims)


async def _restart(ledger: Ledger, server: PostgresServer, databases: dict[str, str]) -> tuple[Outage, Balance]:
    outage = await stop_and_start(ledger, server, databases, messages=2000)
    return outage, ledger.balance()


def _figures(balance: Balance) -> dict[str, list[float]]:
    return {
        "accepted": [float(balance.accepted)],
        "handled": [float(balance.handled)],
        "waiting": [float(balance.waiting)],
        "lost": [float(len(balance.lost))],
        "handled twice": [float(len(balance.repeated))],
    }


def _none_lost(what: str, balance: Balance) -> Aim:
    return at_most(0, len(balance.lost) + len(balance.repeated), f"{what}: messages lost or handled twice")
