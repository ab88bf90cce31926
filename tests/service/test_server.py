"""`postroom serve` as a process: start, stop, kill, tokens, addresses and many connections."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.postgres import create_database
from tests.redis import new_prefix
from tests.redis import server as redis_server
from tests.service.load import Connection, Load, request
from tests.service.process import TOKEN, ServiceProcess, service_process

BEGIN = "/v1/inbox/try-begin"
TOKENS = ("--tokens", f"shop={TOKEN}")


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "redis":
        monkeypatch.setenv("POSTROOM_SERVE_PREFIX", new_prefix())  # of each process that the test starts
        return redis_server()
    return f"sqlite:///{tmp_path}/service.db" if request.param == "sqlite" else create_database()


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/service.db"


@contextlib.contextmanager
def serving(url: str, *arguments: str, **options: Any) -> Iterator[ServiceProcess]:
    with service_process("--url", url, *TOKENS, *arguments, **options) as service:
        yield service


async def call(address: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
    """Sends one request on a new connection."""
    connection = await Connection.open(address)
    try:
        return await (connection.get(path, token) if body is None else connection.post(path, body, token))
    finally:
        await connection.close()


async def stored(url: str, keys: list[str]) -> dict[str, str]:
    """Returns the status of each key, as another process reports it."""
    with serving(url) as service:
        connection = await Connection.open(service.addresses(1)[0])
        reports = {key: (await connection.get(f"/v1/inbox/{key}"))[1]["status"] for key in keys}
        await connection.close()
    return reports


async def test_a_stop_under_load_loses_no_response(url: str) -> None:
    with serving(url) as service:
        load = Load(service.addresses(1)[0])
        await load.run(50, 300, lambda: service.process.send_signal(signal.SIGTERM))
        assert service.join() == 0
    found = await stored(url, [*load.known, *load.without_response])
    assert {key: found[key] for key in load.known} == load.known
    never_stored = {"try-begin": "Unknown", "mark-processed": "Leased"}
    assert {key: found[key] for key in load.without_response} == {
        key: never_stored[verb] for key, verb in load.without_response.items()
    }


async def test_a_stop_waits_for_requests_in_progress(sqlite: str) -> None:
    with serving(sqlite) as service:
        [address] = service.addresses(1)
        parts = urlsplit(address)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head, _, body = request("POST", BEGIN, b'{"key": "a"}').partition(b"\r\n\r\n")
        writer.write(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert b"100" in await reader.readuntil(b"\r\n\r\n")  # the service waits for the body
        service.process.send_signal(signal.SIGTERM)
        with pytest.raises(OSError):  # noqa: PT012 - until the port is closed
            while True:
                await (await Connection.open(address)).close()
        writer.write(body)
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert b"Acquired" in await reader.read()
        writer.close()
        assert service.join() == 0


async def test_after_a_kill_every_response_is_still_true(url: str) -> None:
    with serving(url) as service:
        load = Load(service.addresses(1)[0])
        await load.run(50, 300, service.process.kill)
        assert service.join() == -signal.SIGKILL
    found = await stored(url, list(load.known))
    # A mark whose response did not arrive may be stored.
    expected = {
        key: {"Processed", status} if key in load.without_response else {status} for key, status in load.known.items()
    }
    assert {key for key in expected if found[key] not in expected[key]} == set()


async def test_the_token_file_is_read_again(sqlite: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# callers\nshop=first-token-of-shop\n", "utf-8")
    with service_process("--url", sqlite, "--token-file", str(file)) as service:
        [address] = service.addresses(1)
        assert (await call(address, BEGIN, {"key": "a"}, "first-token-of-shop"))[0] == 200
        assert (await call(address, BEGIN, {"key": "b"}, "second-token-of-shop"))[0] == 401
        file.write_text("shop=second-token-of-shop\n", "utf-8")
        async with asyncio.timeout(30):
            while (await call(address, BEGIN, {"key": "b"}, "second-token-of-shop"))[0] != 200:
                pass
        assert (await call(address, BEGIN, {"key": "a"}, "first-token-of-shop"))[0] == 401
        service.wait_for_log("the token file has changed: it has 1 tokens")
        file.write_text("shop=short\n", "utf-8")
        async with asyncio.timeout(30):
            while "could not be read" not in service.log:
                assert (await call(address, BEGIN, {"key": "b"}, "second-token-of-shop"))[0] == 200
        assert "token-of-shop" not in service.log


async def test_health_and_metrics_on_another_address(sqlite: str) -> None:
    with serving(sqlite, "--admin", "127.0.0.1:0") as service:
        public, admin = service.addresses(2)
        await call(public, BEGIN, {"key": "a"})
        for path in ("/live", "/ready", "/metrics", "/version"):
            assert (await call(admin, path, token="none"))[0] == 200
            assert (await call(public, path))[0] == 404
        assert (await call(admin, "/v1/inbox/a"))[0] == 404
        metrics = (await call(admin, "/metrics"))[1]["text"].decode()
        assert 'postroom_service_outcomes_total{status="Acquired",verb="try-begin"} 1.0' in metrics


async def test_a_stop_reports_not_ready_first(sqlite: str) -> None:
    with serving(sqlite, "--ready-seconds", "2") as service:
        [address] = service.addresses(1)
        assert (await call(address, "/ready"))[0] == 200
        service.process.send_signal(signal.SIGTERM)
        service.wait_for_log("not ready from now on")
        assert (await call(address, "/ready"))[0] == 503
        assert (await call(address, "/live"))[0] == 200
        assert (await call(address, BEGIN, {"key": "a"}))[0] == 200
        assert service.join() == 0


async def test_several_processes_share_a_port() -> None:
    url = create_database()
    shared = ("--share-port", "--admin", "127.0.0.1:0")
    with serving(url, *shared) as first:
        address = first.addresses(2)[0]
        with serving(url, *shared, port=int(address.rpartition(":")[2])) as second:
            second.addresses(2)
            begun = await asyncio.gather(*(call(address, BEGIN, {"key": "one"}) for _ in range(50)))
            assert sorted(reply["status"] for _, reply in begun) == ["Acquired"] + ["Busy"] * 49
            keys = [f"k{number}" for number in range(50)]
            leases = await asyncio.gather(*(call(address, BEGIN, {"key": key}) for key in keys))
            settled = await asyncio.gather(
                *(
                    call(address, "/v1/inbox/mark-processed", {"key": key, "leaseId": reply["leaseId"]})
                    for key, (_, reply) in zip(keys, leases, strict=True)
                )
            )
            assert {reply["status"] for _, reply in settled} == {"Processed"}
            for each in (first, second):
                metrics = (await call(each.addresses(2)[1], "/metrics"))[1]["text"].decode()
                assert 'status="Acquired",verb="try-begin"' in metrics


async def test_ten_thousand_open_connections(sqlite: str) -> None:
    count = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
    with serving(sqlite) as service:
        [address] = service.addresses(1)
        connections: list[Connection] = []
        try:
            while len(connections) < count:
                batch = min(250, count - len(connections))
                connections += await asyncio.gather(*(Connection.open(address) for _ in range(batch)))
            for number, connection in enumerate(connections[:: count // 50]):
                status, reply = await connection.post(BEGIN, {"key": f"k{number}"})
                assert (status, reply["status"]) == (200, "Acquired")
            assert (await call(address, "/ready"))[0] == 200
        finally:
            for connection in connections:
                await connection.close()
        assert service.end(signal.SIGTERM) == 0


async def test_a_response_does_not_wait_for_an_acknowledgement(sqlite: str) -> None:
    """With Nagle's algorithm, the body of a response waits about 40 ms for the acknowledgement of its head."""
    with serving(sqlite) as service:
        connection = await Connection.open(service.addresses(1)[0])
        seconds = []
        for _ in range(20):
            began = time.perf_counter()
            await connection.get("/live")
            seconds.append(time.perf_counter() - began)
        await connection.close()
    assert min(seconds[10:]) < 0.03


async def test_a_slow_body(sqlite: str) -> None:
    with serving(sqlite, "--body-seconds", "0.2") as service:
        [address] = service.addresses(1)
        connection = await Connection.open(address)
        status, problem = await connection.send(request("POST", BEGIN, b'{"key": "slow"}')[:-2])
        assert (status, problem["title"]) == (408, "Request Timeout")
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await connection.send(b'"}')  # the connection is closed
        await connection.close()
        assert (await call(address, "/v1/inbox/slow"))[1]["status"] == "Unknown"


async def test_no_secret_key_or_payload_is_logged() -> None:
    url = create_database().replace("postgres@", "postgres:hidden-password@")
    with serving(url, "--log-level", "debug") as service:
        [address] = service.addresses(1)
        begun = (await call(address, BEGIN, {"key": "hidden-key", "owner": "hidden-owner"}))[1]
        mark = {"key": "hidden-key", "leaseId": begun["leaseId"], "result": "hidden-result"}
        message = {"topic": "t", "payload": "hidden-payload", "source": "s", "messageId": "hidden-id"}
        lease = (await call(address, BEGIN, {"key": "hidden-failing"}))[1]["leaseId"]
        failing = {"key": "hidden-failing", "leaseId": lease}
        statuses = [
            await call(address, "/v1/inbox/mark-processed", mark),
            await call(address, "/v1/inboxes/orders/messages", message),
            await call(address, BEGIN, {"key": "hidden-key"}),
            await call(address, "/v1/inbox/fail", {**failing, "error": "hidden-error"}),
            await call(address, BEGIN, {"key": "hidden-failing"}),
            await call(address, "/v1/inbox/release", failing),
            await call(address, "/v1/inbox/hidden-key?key=hidden-query"),
            await call(address, "/hidden-path"),
            await call(address, BEGIN, {"key": "hidden-key"}, "hidden-token-of-nobody"),
            await call(address, BEGIN, {"key": "hidden-key", "hash": "hidden-hash"}),
            await call(address, "/v1/inbox/mark-processed", {**mark, "leaseId": "hidden-lease"}),
        ]
        assert [status for status, _ in statuses] == [200, 200, 200, 200, 200, 200, 200, 404, 401, 400, 400]
        for raw in (b"hidden-line\r\n\r\n", request("POST", BEGIN, b"hidden-json"), request("HIDDEN-METHOD", "/", b"")):
            connection = await Connection.open(address)
            assert (await connection.send(raw))[0] in {400, 404, 405}
            await connection.close()
        assert service.end(signal.SIGTERM) == 0
    assert "caller=shop" in service.log
    for hidden in ("hidden", TOKEN, begun["leaseId"]):
        assert hidden not in service.log.lower()
