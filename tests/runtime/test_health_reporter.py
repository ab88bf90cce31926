"""What a worker process shows of its health: HTTP checks, a heartbeat file, notifications to systemd."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Postroom
from postroom._runtime import health, health_reporter
from postroom._runtime.health import parse_address
from postroom._runtime.health_reporter import HealthReporter
from postroom._runtime.systemd import Notifier
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import Gate, Logged, Sabotage, always, put, soon

ANY_PORT = "127.0.0.1:0"


async def send(reporter: HealthReporter, request: bytes) -> bytes:
    """The whole response; nothing where the connection was closed."""
    assert reporter.server is not None
    reader, writer = await asyncio.open_connection(*reporter.server.address)
    try:
        writer.write(request)
        return await soon(reader.read())
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def get(reporter: HealthReporter, path: str) -> tuple[int, bytes]:
    head, _, body = (await send(reporter, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def until(holds: Callable[[], bool]) -> None:
    """For what sets no event."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def yes() -> bool:
    return True


class TestHealth:
    async def test_a_process_is_live_from_its_start_and_ready_between_start_and_stop(self, room: Postroom) -> None:
        room.inbox().handler("t")(gate := Gate())
        await put(room.inbox(), 1)
        async with HealthReporter(room.is_ready, health=ANY_PORT) as reporter:
            assert (await get(reporter, "/live"), await get(reporter, "/ready")) == (
                (200, b"ok\n"),
                (503, b"unavailable\n"),
            )
            await room.start()
            reporter.started()
            await gate.reached()
            assert await get(reporter, "/ready") == (200, b"ok\n")
            stopping = asyncio.create_task(room.stop())
            reporter.stopping()
            assert (await get(reporter, "/live"), await get(reporter, "/ready")) == (
                (200, b"ok\n"),
                (503, b"unavailable\n"),
            )
            gate.open()
            await stopping

    async def test_a_room_is_not_ready_while_it_stops(self, room: Postroom) -> None:
        """Its workers are no longer listed, so their state alone would not show it."""
        room.inbox().handler("t")(gate := Gate())
        await put(room.inbox(), 1)
        await room.start()
        await gate.reached()
        assert await room.is_ready()
        stopping = asyncio.create_task(room.stop())
        await until(lambda: not room.health())
        assert not await room.is_ready()
        gate.open()
        await stopping
        assert await room.is_ready()

    async def test_a_store_that_is_down_makes_it_not_ready_but_live(self, room: Postroom) -> None:
        Sabotage(room, "find")
        async with HealthReporter(room.is_ready, health=ANY_PORT) as reporter:
            reporter.started()
            assert (await get(reporter, "/live"))[0] == 200
            assert await get(reporter, "/ready") == (503, b"unavailable\n")

    async def test_a_store_that_does_not_respond_is_not_ready(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health_reporter, "READY_SECONDS", 0.01)
        calls = 0

        async def never() -> bool:
            nonlocal calls
            calls += 1
            await asyncio.Event().wait()
            return True

        async with HealthReporter(never, health=ANY_PORT) as reporter:
            reporter.started()
            assert [(await get(reporter, "/ready"))[0] for _ in range(3)] == [503] * 3
        assert calls == 1  # the next waits for the same call: a database in trouble gets no more of them

    async def test_checks_that_come_together_share_one_result(self) -> None:
        calls, go_on = 0, asyncio.Event()

        async def check() -> bool:
            nonlocal calls
            calls += 1
            await go_on.wait()
            return True

        async with HealthReporter(check, health=ANY_PORT) as reporter:
            reporter.started()
            asking = [asyncio.create_task(get(reporter, "/ready")) for _ in range(10)]
            await until(lambda: calls > 0)
            go_on.set()
            assert set(await asyncio.gather(*asking)) == {(200, b"ok\n")}
        assert calls == 1

    REQUESTS: ClassVar[dict[bytes, tuple[int, bytes]]] = {
        b"GET /live?now=1 HTTP/1.0\r\n\r\n": (200, b"ok\n"),
        b"HEAD /live HTTP/1.1\r\n\r\n": (200, b""),
        b"HEAD / HTTP/1.1\r\n\r\n": (404, b""),
        b"GET / HTTP/1.1\r\n\r\n": (404, b"not found\n"),
        b"GET /live/ HTTP/1.1\r\n\r\n": (404, b"not found\n"),
        b"POST /live HTTP/1.1\r\n\r\n": (405, b"method not allowed\n"),
        b"nonsense\r\n\r\n": (400, b"bad request\n"),
        b"GET /live SPDY/3\r\n\r\n": (400, b"bad request\n"),
        b"\xff\xfe \x00 HTTP/1.1\r\n\r\n": (405, b"method not allowed\n"),
    }

    @pytest.mark.parametrize("request_", REQUESTS)
    async def test_each_request_has_a_fixed_response(self, request_: bytes) -> None:
        async with HealthReporter(yes, health=ANY_PORT) as reporter:
            head, _, body = (await send(reporter, request_)).partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert (int(lines[0].split()[1]), body) == self.REQUESTS[request_]
        names = [line.split(b":")[0] for line in lines[1:]]
        assert names == [b"Content-Type", b"Content-Length", b"Cache-Control", b"Connection"]  # and no Server

    async def test_a_request_that_is_too_large_is_refused(self) -> None:
        async with HealthReporter(yes, health=ANY_PORT) as reporter:
            large = await send(reporter, b"GET /live HTTP/1.1\r\nX: " + b"x" * 20_000)
            assert large.startswith(b"HTTP/1.1 431 ") or not large  # the rest of it may reset the connection first
            assert (await get(reporter, "/live"))[0] == 200

    async def test_a_client_that_is_slow_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "REQUEST_SECONDS", 0.01)
        async with HealthReporter(yes, health=ANY_PORT) as reporter:
            assert await send(reporter, b"GET /live HTTP/1.1\r\n") == b""

    async def test_too_many_clients_are_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "MAX_CONNECTIONS", 1)
        async with HealthReporter(yes, health=ANY_PORT) as reporter:
            assert reporter.server is not None
            _, first = await asyncio.open_connection(*reporter.server.address)
            assert await send(reporter, b"GET /live HTTP/1.1\r\n\r\n") == b""
            first.close()
            server = reporter.server
            await until(lambda: not server._clients)
            assert (await get(reporter, "/live"))[0] == 200

    async def test_clients_that_wait_do_not_hold_up_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "REQUEST_SECONDS", 1000)
        async with asyncio.timeout(10):
            async with HealthReporter(yes, health=ANY_PORT) as reporter:
                assert reporter.server is not None
                reader, writer = await asyncio.open_connection(*reporter.server.address)
                server = reporter.server
                await until(lambda: bool(server._clients))
            assert await reader.read() == b""
            writer.close()

    async def test_a_port_in_use_raises(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            async with HealthReporter(yes, health=f"127.0.0.1:{taken.getsockname()[1]}"):
                pass

    @pytest.mark.parametrize(
        ("text", "address"),
        [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:8080", ("::1", 8080)), ("localhost:0", ("localhost", 0))],
    )
    def test_an_address_is_host_and_port(self, text: str, address: tuple[str, int]) -> None:
        assert parse_address(text) == address

    @pytest.mark.parametrize("text", ["", "8080", ":8080", "host:", "host:http", "host:65536", "::1:80", "host:-1"])
    def test_another_text_is_refused(self, text: str) -> None:
        with pytest.raises(ArgumentValueError, match=r"such as 127\.0\.0\.1:8080"):
            parse_address(text)

    def test_another_type_is_refused(self) -> None:
        room = Postroom("memory://")
        room.inbox().handler("t")(always())
        wrong: Any = 8080
        with pytest.raises(ArgumentTypeError, match="health must be a str, not int"):
            room.run(health=wrong)


class TestHeartbeat:
    async def test_the_file_is_touched_while_the_loop_runs_and_removed_at_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health_reporter, "BEAT_SECONDS", 0.001)
        file = tmp_path / "beat"
        async with HealthReporter(yes, heartbeat=file):
            for _ in range(2):
                os.utime(file, (0, 0))
                await until(lambda: file.stat().st_mtime > 0)
        assert not file.exists()

    async def test_a_file_that_cannot_be_written_raises_at_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            async with HealthReporter(yes, health=ANY_PORT, heartbeat=tmp_path / "missing" / "beat"):
                pass

    async def test_and_is_logged_later(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health_reporter, "BEAT_SECONDS", 0.001)
        folder = tmp_path / "folder"
        folder.mkdir()
        with Logged() as logged:
            async with HealthReporter(yes, heartbeat=folder / "beat"):
                (folder / "beat").unlink()
                folder.rmdir()
                await logged.says("the heartbeat file could not be written: FileNotFoundError")


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Awaitable[str]]]:
    """A socket such as that of systemd; returns the next state that was sent to it."""
    with (
        tempfile.TemporaryDirectory() as folder,  # its name is short, as that of a socket must be
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.setblocking(False)
        receiver.bind(f"{folder}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")

        async def state() -> str:
            async with asyncio.timeout(10):
                return (await asyncio.get_running_loop().sock_recv(receiver, 100)).decode()

        yield state


class TestSystemd:
    async def test_it_is_notified_when_the_room_is_ready_and_when_it_stops(
        self, systemd: Callable[[], Awaitable[str]], open_room: OpenRoom
    ) -> None:
        room = await open_room()
        notifier = Notifier.from_environment()
        assert notifier is not None
        assert notifier.watchdog_seconds is None
        async with HealthReporter(room.is_ready, notifier=notifier) as reporter:
            await room.start()
            reporter.started()
            assert await systemd() == "READY=1"
            reporter.stopping()
            assert await systemd() == "STOPPING=1"

    async def test_the_watchdog_is_fed(
        self, systemd: Callable[[], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        async with HealthReporter(yes, notifier=Notifier.from_environment()) as reporter:
            assert await systemd() == "WATCHDOG=1"
            reporter.started()
            states = {await systemd() for _ in range(4)}
            assert states == {"READY=1", "WATCHDOG=1"}

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")
    async def test_its_socket_may_have_an_abstract_name(self) -> None:
        name = f"postroom-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.settimeout(10)
            receiver.bind(f"\0{name}")
            Notifier(f"@{name}").send("READY=1")
            assert receiver.recv(100) == b"READY=1"

    def test_another_process_is_not_watched(self) -> None:
        environment = {"NOTIFY_SOCKET": "@postroom", "WATCHDOG_USEC": "1000000"}
        for process, seconds in ((str(os.getpid()), 1.0), ("1", None)):
            notifier = Notifier.from_environment({**environment, "WATCHDOG_PID": process})
            assert notifier is not None
            assert notifier.watchdog_seconds == seconds

    @pytest.mark.parametrize("address", ["", "vsock:2:1234"])
    def test_elsewhere_there_is_none(self, address: str) -> None:
        assert Notifier.from_environment({"NOTIFY_SOCKET": address}) is None
        assert Notifier.from_environment({}) is None

    async def test_a_socket_that_is_gone_is_logged(self, tmp_path: Path) -> None:
        with Logged() as logged:
            Notifier(str(tmp_path / "gone")).send("READY=1")
            await logged.says("systemd could not be notified of READY=1: FileNotFoundError")
