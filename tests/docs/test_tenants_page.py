"""The service on the page about tenants works as the page describes it, in real processes, on SQLite and PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import create_engine, text

from postroom import State
from postroom.sync import Postroom
from tests.docs.pages import ROOT, files_in
from tests.docs.test_snippets import ENVIRONMENT
from tests.postgres import create_database, with_driver

PAGE = ROOT / "docs/how-to/serve-many-tenants.md"

CLIENT = """\
import asyncio

import httpx
from web import app


async def main() -> None:
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        paid = {"id": "evt_1", "type": "payment.received"}
        ordered = {"id": "evt_2", "type": "order.created", "order": 7}
        acme, globex = [("acme", event) for event in (paid, paid, ordered)], [("globex", ordered)]
        for tenant, event in (*acme[:2], *globex, *acme[2:], ("unknown", paid)):
            print((await client.post(f"/{tenant}/webhooks", json=event)).status_code)
        print((await client.post("/globex/orders", json={"order": 9})).status_code)


asyncio.run(main())
"""


class Service(NamedTuple):
    """The files of the page in a folder, and the databases of two tenants."""

    folder: Path
    environment: dict[str, str]
    tenants: dict[str, str]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", *arguments],
            cwd=self.folder,
            env=ENVIRONMENT | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        with self.start(*arguments) as process:
            out, said = process.communicate(timeout=120)
        assert process.returncode == 0, out + said
        return out


def on_sqlite(folder: Path, name: str) -> tuple[str, str]:
    url = f"sqlite:///{folder / name}.db"
    return url, url


def on_postgres(_: Path, __: str) -> tuple[str, str]:
    url = create_database()
    return url, with_driver(url, "psycopg")


@pytest.fixture(params=["sqlite", "postgres", "mixed"])
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Service:
    for name, content in files_in(PAGE).items():
        (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "client.py").write_text(CLIENT, "utf-8")
    makers: dict[str, list[Callable[[Path, str], tuple[str, str]]]] = {
        "sqlite": [on_sqlite, on_sqlite],
        "postgres": [on_postgres, on_postgres],
        "mixed": [on_sqlite, on_postgres],
    }
    first, second = makers[request.param]
    tenants = {"acme": first(tmp_path, "acme")[0], "globex": second(tmp_path, "globex")[0]}
    _, control = first(tmp_path, "control")
    engine = create_engine(control)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE tenants (id TEXT PRIMARY KEY, url TEXT NOT NULL, active INTEGER)"))
        rows = [{"id": key, "url": url, "active": 1} for key, url in tenants.items()]
        rows.append({"id": "gone", "url": "memory://", "active": 0})
        connection.execute(text("INSERT INTO tenants VALUES (:id, :url, :active)"), rows)
    engine.dispose()
    return Service(tmp_path, {"CONTROL_URL": control}, tenants)


@pytest.mark.req("IBX-EX-08", "IBX-EX-09", "OBX-EX-02", "OBX-EX-03", "IBX-API-35", "OBX-API-22")
def test_requests_reach_the_database_of_their_tenant_and_one_worker_serves_all(service: Service) -> None:
    assert service.run("-m", "postroom", "migrate", "tenants:room") == "2 stores: applied schema version 1\n"
    assert service.run("client.py").split() == ["204", "204", "204", "204", "404", "201"]
    wanted = {"acme has order 7\n", "globex has order 7\n", "acme receipt.send evt_1\n", "globex order.created 9\n"}
    with service.start("-m", "postroom", "run", "tenants:room") as worker:
        watchdog = threading.Timer(60, worker.kill)
        watchdog.start()
        assert worker.stdout is not None
        seen = []
        for line in worker.stdout:
            seen.append(line)
            if wanted <= set(seen):
                break
        worker.send_signal(signal.SIGTERM)
        _, logged = worker.communicate()
        watchdog.cancel()
    assert wanted <= set(seen), logged
    assert worker.returncode == 0
    kept = {}
    for tenant, url in service.tenants.items():
        with Postroom(url) as room:
            done = [room.inbox().find(states=[State.DONE]), room.outbox().find(states=[State.DONE])]
            kept[tenant] = [sorted(f"{message.topic} {message.message_id[:3]}" for message in box) for box in done]
            if tenant == "globex":
                assert [message.correlation_id for message in done[1]] == ["9"]
    assert [kept["acme"][0], kept["globex"][0]] == [
        ["order.created evt", "payment.received evt"],
        ["order.created evt"],
    ]
    assert [len(kept["acme"][1]), len(kept["globex"][1])] == [1, 1]
