"""The private servers of the tests: what they keep, what they lose, and that nothing of them is left behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tools.requirements import ROOT
from tools.servers.base import ServerFailed, ServerMissing, missing, wait_for
from tools.servers.pgbouncer import PgBouncer
from tools.servers.postgres import PostgresServer, default_postgres, find_binaries, is_responding
from tools.servers.proxy import Proxy


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        find_binaries()
    except ServerMissing as reason:
        missing(reason)
    with PostgresServer() as started:
        started.query("create table ledger (entry integer)")
        yield started


@pytest.fixture
def ledger(server: PostgresServer) -> Iterator[PostgresServer]:
    server.query("truncate ledger")
    yield server
    if not server.running:
        server.start()


@pytest.fixture
def proxy(ledger: PostgresServer) -> Iterator[Proxy]:
    with Proxy(ledger.host, ledger.port) as started:
        yield started


def through(proxy: Proxy) -> psycopg.Connection:
    return psycopg.connect(f"postgresql://postgres@{proxy.host}:{proxy.port}/postgres", connect_timeout=10)


def entries(server: PostgresServer) -> list[int]:
    return [entry for (entry,) in server.query("select entry from ledger order by entry")]


def test_a_server_has_the_defaults_of_postgresql_and_is_the_version_it_says(server: PostgresServer) -> None:
    assert server.query("select current_setting('fsync'), current_setting('server_encoding')") == [("on", "UTF8")]
    assert server.query("show server_version")[0][0].split()[0] == server.version


def test_settings_hold_from_the_next_start_and_a_stop_keeps_the_data(ledger: PostgresServer) -> None:
    ledger.query("insert into ledger values (1)")
    ledger.settings["work_mem"] = "7MB"
    ledger.restart()
    assert ledger.query("show work_mem") == [("7MB",)]
    assert entries(ledger) == [1]


def test_a_committed_row_survives_a_kill_and_an_open_transaction_does_not(ledger: PostgresServer) -> None:
    with psycopg.connect(ledger.url()) as connection:
        connection.execute("insert into ledger values (1)")
        connection.commit()
        connection.execute("insert into ledger values (2)")
        ledger.kill()
        assert (ledger.data / "postmaster.pid").exists()  # a server that ends in order removes it
        assert not is_responding(ledger.url())
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    ledger.start()
    assert entries(ledger) == [1]


def test_a_paused_server_responds_after_it_is_resumed(ledger: PostgresServer) -> None:
    with psycopg.connect(ledger.url()) as connection:
        connection.execute("select 1")
        ledger.pause()
        try:
            state = process(connection.info.backend_pid, "stat")
        finally:
            ledger.resume()
        assert state.startswith("T")
        assert connection.execute("select 2").fetchone() == (2,)


def test_a_database_is_made(server: PostgresServer) -> None:
    with psycopg.connect(server.create_database("Of its own")) as connection:
        assert connection.info.dbname == "Of its own"


def test_a_server_that_cannot_start_raises_its_log_and_leaves_nothing(server: PostgresServer) -> None:
    broken = PostgresServer({"no_such_setting": "1"}, binaries=server.binaries)
    with pytest.raises(ServerFailed, match="no_such_setting"), broken:
        pass
    assert not broken.folder.exists()


def test_a_replica_follows_and_takes_over(ledger: PostgresServer) -> None:
    with PostgresServer.replica_of(ledger) as replica:
        ledger.query("insert into ledger values (1)")
        replica.wait_for_replay()
        assert entries(replica) == [1]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            replica.query("insert into ledger values (2)")
        ledger.kill()
        replica.promote()
        replica.query("insert into ledger values (2)")
        assert entries(replica) == [1, 2]
    assert not replica.folder.exists()


def test_a_cut_breaks_what_is_open_and_only_that(proxy: Proxy) -> None:
    with through(proxy) as connection:
        connection.execute("select 1")
        assert proxy.connections == 1
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with through(proxy) as connection:
        assert connection.execute("select 2").fetchone() == (2,)


def test_a_proxy_refuses_new_connections_and_accepts_them_again(proxy: Proxy) -> None:
    with through(proxy) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            through(proxy)
        assert connection.execute("select 1").fetchone() == (1,)
    proxy.accept()
    with through(proxy) as connection:
        assert connection.execute("select 2").fetchone() == (2,)


async def test_a_frozen_proxy_holds_the_bytes_until_it_thaws(proxy: Proxy) -> None:
    reached = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        reached.set()
        writer.close()

    listener = await asyncio.start_server(greet, proxy.host, 0)
    async with listener:
        proxy.target = listener.sockets[0].getsockname()[:2]
        proxy.freeze()
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        writer.write(b"hello")
        await writer.drain()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reached.wait(), 0.1)
        proxy.thaw()
        await asyncio.wait_for(reached.wait(), 10)
        assert await reader.read() == b""
        writer.close()


def test_a_commit_whose_reply_was_cut_is_a_commit(ledger: PostgresServer, proxy: Proxy) -> None:
    with through(proxy) as connection, through(proxy) as bystander:
        connection.execute("insert into ledger values (1)")
        cut = proxy.cut_after(lambda data: b"COMMIT" in data)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert entries(ledger) == [1]
        assert cut.wait(10)
        bystander.execute("insert into ledger values (2)")
        bystander.commit()
    assert entries(ledger) == [1, 2]


def test_a_bouncer_shares_one_connection_between_transactions(ledger: PostgresServer) -> None:
    try:
        bouncer = PgBouncer(ledger, settings={"default_pool_size": "1", "query_wait_timeout": "10"})
    except ServerMissing as reason:
        missing(reason)
    with bouncer, psycopg.connect(bouncer.url()) as first, psycopg.connect(bouncer.url()) as second:
        backends = set()
        for connection in (first, second, first):
            connection.execute("insert into ledger values (1)")
            backends.add(connection.execute("select pg_backend_pid()").fetchone())
            connection.commit()
        assert len(backends) == 1
    assert entries(ledger) == [1, 1, 1]


def test_the_default_server_responds() -> None:
    try:
        url = default_postgres()
    except ServerMissing as reason:
        missing(reason)
    assert is_responding(url)
    assert default_postgres() is url


def test_a_missing_server_skips_and_fails_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception, match="SERVER MISSING: no such server"):
        missing(ServerMissing("no such server"))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="SERVER MISSING: no such server"):
        missing(ServerMissing("no such server"))


OWNER = """
import os, sys
from tools.servers.postgres import PostgresServer

server = PostgresServer()
server.start()
child = os.fork()
if child == 0:
    sys.exit()  # runs the exit handlers of its parent, which must not end the server of its parent
os.waitpid(child, 0)
print(server.pid, server.folder, server.query("select 1")[0][0], flush=True)
sys.stdin.read()
raise SystemError("the tests failed")
"""


@pytest.mark.parametrize("end", ["error", "kill"])
def test_a_server_ends_with_the_process_that_started_it(server: PostgresServer, end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    ) as owner:
        assert owner.stdout is not None
        pid, folder, result = owner.stdout.readline().decode().split()
        assert result == "1"
        assert Path(folder).exists()
        if end == "kill":
            owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=20)
    wait_for(lambda: not Path(folder).exists(), "the folder to be removed")
    assert folder not in process(int(pid), "args")


def process(pid: int, column: str) -> str:
    return subprocess.run(
        ["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
