"""A private PgBouncer in front of a private PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from tools.servers.base import HOST, Server, ServerMissing
from tools.servers.postgres import PostgresServer, is_responding

PoolMode = Literal["session", "transaction", "statement"]


class PgBouncer(Server):
    """A separate PgBouncer, for every database and for the user postgres of one server.

    `settings` are those of the section [pgbouncer]; they may be changed between a stop and a start.
    """

    name = "pgbouncer"
    # At once. What its other signals wait for differs between versions: for the clients to leave, among others.
    stop_signal = signal.SIGQUIT

    def __init__(
        self, server: PostgresServer, pool_mode: PoolMode = "transaction", *, settings: Mapping[str, str] | None = None
    ) -> None:
        self.binary = find_binary()
        self.server = server
        self.pool_mode = pool_mode
        self.settings = dict(settings or {})
        super().__init__()
        self.configuration = self.folder / "pgbouncer.ini"

    def prepare(self) -> None:
        (self.folder / "users.txt").write_text('"postgres" ""\n')

    def command(self) -> list[str]:
        settings = {
            "listen_addr": HOST,
            "listen_port": str(self.port),
            "unix_socket_dir": str(self.folder),
            "auth_type": "trust",
            "auth_file": str(self.folder / "users.txt"),
            "admin_users": "postgres",
            "pool_mode": self.pool_mode,
            **self.settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"* = host={self.server.host} port={self.server.port}"
        self.configuration.write_text("\n".join(["[databases]", databases, "[pgbouncer]", *lines, ""]))
        return [self.binary, str(self.configuration)]

    def is_responding(self) -> bool:
        return is_responding(self.url())

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{quote(database)}"


def find_binary() -> str:
    """The installed program; root gets Debian's package where it is missing."""
    if binary := _installed():
        return binary
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("PgBouncer is missing: installing Debian's package", flush=True)
        # Other workers may be at it too: they wait for the lock, and then find it done.
        install = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", "pgbouncer"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(install, env=environment, capture_output=True, timeout=300, check=False)
        # Debian starts the service of what it installs. There was none before, and it is not needed.
        subprocess.run(["service", "pgbouncer", "stop"], capture_output=True, timeout=30, check=False)
        if binary := _installed():
            return binary
    raise ServerMissing("PgBouncer: the program pgbouncer is not installed")


def _installed() -> str | None:
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
