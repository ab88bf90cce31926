"""The service in a thread of this process, with a clock that tests move; callers reach it over TCP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from postroom.service.app import make_service
from postroom.service.server import bind
from postroom.service.settings import Settings
from postroom.spi import Clock
from tests.postgres import clean_database
from tests.redis import new_prefix
from tests.redis import server as redis_server

TOKEN = "correct-horse-battery"
STORES = ("sqlite", "postgresql", "redis")
WATCHDOG_SECONDS = 60.0


def store_settings(name: str, path: Path) -> dict[str, str]:
    """Returns the settings of a service on an empty store of this kind."""
    if name == "sqlite":
        return {"url": f"sqlite:///{path}/service.db"}
    if name == "postgresql":
        return {"url": clean_database()}
    return {"url": redis_server(), "prefix": new_prefix()}


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # in a thread there are none


@contextmanager
def serving(settings: Settings, clock: Clock | None = None) -> Iterator[str]:
    """Runs a service. Yields its URL."""
    service = make_service(settings, clock=clock)
    server = _Server(uvicorn.Config(service.app, lifespan="off", access_log=False, log_config=None, ws="none"))
    listening = bind("127.0.0.1", 0, shared=False)
    ready = threading.Event()

    async def run() -> None:
        try:
            await service.room.migrate()
            service.readiness.is_open = True
            ready.set()
            await server.serve(sockets=[listening])
        finally:
            ready.set()
            await service.room.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(WATCHDOG_SECONDS)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WATCHDOG_SECONDS)
        listening.close()
        assert not thread.is_alive()
