"""A private PostgreSQL server, its streaming replica, and the server that ordinary tests use."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tools.servers.base import HOST, PATIENCE, PRIVATE, Server, ServerFailed, ServerMissing, wait_for

__all__ = ["PostgresServer", "ServerFailed", "ServerMissing", "default_postgres", "find_binaries", "is_responding"]

_USER = "postgres"


class PostgresServer(Server):
    """A separate PostgreSQL server. Its settings are PostgreSQL's defaults, fsync included, unless others are passed.

    `settings` may be changed between a stop and a start.
    """

    name = "postgres"

    def __init__(self, settings: Mapping[str, str] | None = None, *, binaries: Path | None = None) -> None:
        self.binaries = binaries or find_binaries()
        self.settings = dict(settings or {})
        self.primary: PostgresServer | None = None
        self.application_name = ""
        super().__init__()
        self.data = self.folder / "data"

    @classmethod
    def replica_of(
        cls, primary: PostgresServer, settings: Mapping[str, str] | None = None, *, application_name: str = "replica"
    ) -> Self:
        """A streaming replica of a server that is running; start it like any other.

        `application_name` is what the primary's synchronous_standby_names can name.
        """
        replica = cls({**primary.settings, **(settings or {})}, binaries=primary.binaries)
        replica.primary = primary
        replica.application_name = application_name
        return replica

    def prepare(self) -> None:
        # Only the making of the folder goes without fsync; the server itself uses it.
        if self.primary is None:
            program = "initdb"
            locale = "C.UTF-8" if sys.platform == "linux" else "C"
            options = ["--auth=trust", f"--username={_USER}", "--encoding=UTF8", f"--locale={locale}"]
        else:
            program = "pg_basebackup"
            source = f"host={HOST} port={self.primary.port} user={_USER} application_name={self.application_name}"
            options = [f"--dbname={source}", "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"]
        self.run(self.binaries / program, f"--pgdata={self.data}", *options, "--no-sync")

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *options]

    def is_responding(self) -> bool:
        return is_responding(self.url())

    def clean(self) -> None:
        # A crash leaves shared memory behind, a megabyte each time, which only the next start removes.
        if not self.running and (self.data / "postmaster.pid").exists():
            with contextlib.suppress(ServerFailed):
                self.start(seconds=10)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}@{HOST}:{self.port}/{quote(database)}"

    @functools.cached_property
    def version(self) -> str:
        """Such as "15.14"."""
        program = [str(self.binaries / "postgres"), "--version"]
        return subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()[2]

    def query(self, statement: str, *parameters: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs one statement in a new connection and transaction. Returns its rows, if it has any."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str) -> str:
        """Make a database; its URL."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return self.url(name)

    @property
    def in_recovery(self) -> bool:
        """Whether it is a replica now: true until it is promoted."""
        return bool(self.query("select pg_is_in_recovery()")[0][0])

    def promote(self, *, seconds: float = PATIENCE) -> None:
        """Make the replica a primary, and return when it takes writes."""
        (done,) = self.query("select pg_promote(true, %s)", int(seconds))[0]
        if not done:
            raise ServerFailed(f"the replica was not promoted in {seconds:g} seconds\n{self.log_tail()}")
        wait_for(lambda: not self.in_recovery, "the replica to take writes", seconds=seconds)

    def wait_for_replay(self, position: str | None = None, *, seconds: float = PATIENCE) -> None:
        """Return when the replica shows everything that the primary has written up to now, or up to `position`."""
        if position is None:
            if self.primary is None:
                raise ServerFailed("only a replica replays")
            (position,) = self.primary.query("select pg_current_wal_lsn()::text")[0]
        replayed = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_for(lambda: bool(self.query(replayed, position)[0][0]), f"the replay of {position}", seconds=seconds)


@functools.cache
def default_postgres() -> str:
    """The URL of the server for ordinary tests: the one of POSTROOM_TEST_POSTGRES, the machine's, or a private one.

    Others use it too: make databases with random names there, and drop them. A private server ends with the process.
    POSTROOM_TEST_POSTGRES=private starts one though the machine has a server.
    """
    given = os.environ.get("POSTROOM_TEST_POSTGRES")
    if given and given != PRIVATE:
        if not is_responding(given):
            raise ServerMissing("PostgreSQL: the server of POSTROOM_TEST_POSTGRES does not respond")
        return given
    installed = f"postgresql://{_USER}@{HOST}:5432/postgres"
    if given != PRIVATE and is_responding(installed):
        return installed
    server = PostgresServer()
    try:
        server.start()
    except ServerFailed as failure:
        server.close()
        raise ServerMissing(f"PostgreSQL: {str(failure).splitlines()[0]}") from failure
    return server.url()


def find_binaries() -> Path:
    """The folder of the newest PostgreSQL that is installed."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major, reverse=True)
    if program := shutil.which("pg_config"):
        output = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False).stdout
        candidates.append(Path(output.strip()))
    if program := shutil.which("initdb"):
        candidates.append(Path(program).parent)
    for folder in candidates:
        if all((folder / needed).exists() for needed in ("initdb", "postgres", "pg_basebackup")):
            return folder
    raise ServerMissing("PostgreSQL: initdb, postgres and pg_basebackup are not installed, and no server responds")


def _major(binaries: Path) -> int:
    name = binaries.parent.name
    return int(name) if name.isdigit() else 0


def is_responding(url: str) -> bool:
    """Whether a connection to a server of PostgreSQL, and a query, succeed now."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            connection.execute("select 1")
    except psycopg.OperationalError:
        return False
    return True
