"""The stores of a benchmark: SQLite files, and databases of a separate PostgreSQL server."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql
from tools.servers.postgres import PostgresServer

from postroom.sync import Postroom

Urls = dict[str, str]
"""The URL of each store, by its identifier."""


@contextmanager
def sqlite_files(count: int) -> Iterator[Urls]:
    """Makes files with our tables, and removes them at the end."""
    with tempfile.TemporaryDirectory(prefix="postroom-many-") as folder:
        first = Path(folder, "s0.db")
        _migrate(f"sqlite:///{first}")
        paths = [Path(folder, f"s{number}.db") for number in range(count)]
        for path in paths[1:]:
            shutil.copyfile(first, path)
        yield {path.stem: f"sqlite:///{path}" for path in paths}


@contextmanager
def postgres_databases(server: PostgresServer, count: int) -> Iterator[Urls]:
    """Makes databases with our tables from a template, and drops them at the end."""
    made: list[str] = []

    def new_name() -> str:
        made.append(f"postroom_many_{secrets.token_hex(6)}")
        return made[-1]

    with psycopg.connect(server.url(), autocommit=True, application_name="benchmark") as admin:
        try:
            template = new_name()
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(template)))
            _migrate(server.url(template))
            for name in [new_name() for _ in range(count)]:
                create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
                admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
            admin.execute("CHECKPOINT")
            yield {f"p{number}": server.url(name) for number, name in enumerate(made[1:])}
        finally:
            for name in made if server.running else ():
                with suppress(psycopg.Error):
                    admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _migrate(url: str) -> None:
    with Postroom(url) as room:
        room.migrate()
