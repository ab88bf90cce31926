"""Runs the service: one or two addresses, signals, and a stop that finishes the requests in progress."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from postroom._runtime.health import parse_address
from postroom.service.app import Service, make_service
from postroom.service.settings import Settings

_log = logging.getLogger("postroom.service")


class _Server(uvicorn.Server):
    """A server whose signals are those of the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_WITH_IDS = frozenset({"event_log", "dead_letter_log"})
"""Modules whose records have message ids and error texts. Those of the service are keys and texts of its callers."""


def _has_no_ids(record: logging.LogRecord) -> bool:
    return record.module not in _WITH_IDS


def run(settings: Settings) -> None:
    """Runs a service until SIGINT or SIGTERM. Each request is logged by the gate, without its key."""
    logging.getLogger("postroom").addFilter(_has_no_ids)
    asyncio.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Runs a service in this event loop until SIGINT or SIGTERM."""
    service = make_service(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await _serve_until(stop, service, settings)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await service.room.close()


async def _serve_until(stop: asyncio.Event, service: Service, settings: Settings) -> None:
    if settings.migrate:
        await service.room.migrate()
    sockets = [bind(settings.host, settings.port, shared=settings.share_port)]
    servers = [_server(service.app, settings)]
    if service.admin is not None and settings.admin is not None:
        sockets.append(bind(*parse_address(settings.admin), shared=settings.share_port))
        servers.append(_server(service.admin, settings))
    tasks = [
        asyncio.create_task(server.serve(sockets=[listening]))
        for server, listening in zip(servers, sockets, strict=True)
    ]
    await service.room.start()
    service.readiness.is_open = True
    for listening in sockets:
        host, port = listening.getsockname()[:2]
        _log.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    service.readiness.is_open = False
    _log.info("stopping: not ready from now on")
    await asyncio.sleep(settings.ready_seconds)
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)


def _server(app: ASGIApp, settings: Settings) -> _Server:
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=max(1, round(settings.stop_seconds)),
    )
    return _Server(config)


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """Returns a listening socket. `shared`: other processes may listen on the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is given; without it, a response can take 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    listening.listen(2048)
    listening.setblocking(False)
    return listening
