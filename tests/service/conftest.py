"""The service in this process, called over ASGI; and as a process, called over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from postroom.service.app import Service, make_service
from postroom.service.settings import Settings
from tests.redis import new_prefix
from tests.redis import server as redis_server

TOKEN = "correct-horse-battery"


@asynccontextmanager
async def client_of(service: Service, token: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    transport = httpx2.ASGITransport(app=service.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers) as client:
        yield client


@asynccontextmanager
async def serving(token: str | None = None, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A service with these settings, and a client."""
    service = make_service(Settings(**{"url": "memory://", **options}))
    await service.room.migrate()
    service.readiness.is_open = True
    try:
        async with client_of(service, token) as client:
            yield client
    finally:
        await service.room.close()


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    stores = {
        "memory": lambda: {"url": "memory://"},
        "sqlite": lambda: {"url": f"sqlite:///{tmp_path}/service.db"},
        "redis": lambda: {"url": redis_server(), "prefix": new_prefix()},
    }
    async with serving(**stores[request.param]()) as made:
        yield made
