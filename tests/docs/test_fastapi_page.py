"""The service on the page about FastAPI works as the page describes it, in real processes on PostgreSQL."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI

from tests.docs.pages import ROOT, files_in
from tests.docs.test_snippets import ENVIRONMENT
from tests.postgres import create_database, with_driver

PAGE = ROOT / "docs/how-to/use-fastapi.md"

CLIENT = """\
import asyncio
import hmac

import httpx
from web import create_app


async def main() -> None:
    app = create_app()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        order = (await client.post("/orders", json={"item": "tea"})).json()["id"]
        body = b'{"id": "evt_1", "order": %d}' % order
        signature = hmac.digest(b"secret", body, "sha256").hex()
        for _ in range(2):
            response = await client.post("/webhooks/bank", content=body, headers={"X-Signature": signature})
            print(response.status_code)
        refused = await client.post("/webhooks/bank", content=b"{", headers={"X-Signature": "no"})
        print(refused.status_code)


asyncio.run(main())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in files_in(PAGE).items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "client.py").write_text(CLIENT, "utf-8")
    return tmp_path


def python(project: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=project,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_the_page_pass(project: Path) -> None:
    output = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST_SERVER=create_database())
    assert "5 passed" in output


def test_the_web_process_writes_and_the_worker_process_handles(project: Path) -> None:
    environment = {"DATABASE_URL": with_driver(create_database(), "asyncpg"), "WEBHOOK_SECRET": "secret"}
    python(project, "-m", "postroom", "migrate", "worker:room", **environment)
    [create] = re.findall(r"^python -c '(.*)'$", PAGE.read_text("utf-8"), re.MULTILINE)
    python(project, "-W", "ignore", "-c", create, **environment)  # leaves a connection open
    assert python(project, "client.py", **environment).split() == ["204", "204", "401"]
    with subprocess.Popen(
        [sys.executable, "-m", "postroom", "run", "worker:room", "--health", "127.0.0.1:0"],
        cwd=project,
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        watchdog = threading.Timer(60, worker.kill)
        watchdog.start()
        assert worker.stdout is not None
        wanted = {"order.placed 1\n", "order.paid 1\n"}
        for line in worker.stdout:
            wanted.discard(line)
            if not wanted:
                break
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        watchdog.cancel()
    assert wanted == set()


# -- what the page says of FastAPI itself ----------------------------------------------------------------------------


def served(app: FastAPI, log: list[str]) -> list[str]:
    """Call the route once; what the route logs and what the server sends, in their order."""

    async def send(message: Any) -> None:
        log.append(message["type"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b"", "http_version": "1.1"}
    asyncio.run(app(scope | {"scheme": "http", "server": ("shop", 80), "root_path": ""}, receive, send))
    return log


@pytest.mark.parametrize(("scope", "first"), [("request", "http.response.start"), ("function", "committed")])
def test_a_dependency_commits_after_the_response_unless_its_scope_is_the_function(scope: Any, first: str) -> None:
    app, log = FastAPI(), list[str]()

    async def session() -> AsyncIterator[None]:
        yield
        log.append("committed")

    @app.post("/", dependencies=[Depends(session, scope=scope)])
    async def route() -> None: ...

    assert served(app, log)[0] == first
    assert "committed" in log


def test_a_background_task_runs_after_the_response() -> None:
    app, log = FastAPI(), list[str]()

    async def enqueue() -> None:
        log.append("enqueued")

    @app.post("/")
    async def route(tasks: BackgroundTasks) -> None:
        tasks.add_task(enqueue)

    assert served(app, log)[-1] == "enqueued"
