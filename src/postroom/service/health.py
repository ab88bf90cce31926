"""Health, metrics and version: for the system that runs the service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from postroom import __version__
from postroom.service.metrics import Metrics

_VERSION = msgspec.json.encode({"version": __version__})


def health_routes(is_ready: Callable[[], Awaitable[bool]], metrics: Metrics) -> list[Route]:
    """Returns the routes `/live`, `/ready`, `/metrics` and `/version`."""

    async def live(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        if await is_ready():
            return PlainTextResponse("ok\n")
        return PlainTextResponse("not ready\n", HTTPStatus.SERVICE_UNAVAILABLE)

    async def all_metrics(_request: Request) -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    async def version(_request: Request) -> Response:
        return Response(_VERSION, media_type="application/json")

    return [
        Route("/live", live),
        Route("/ready", ready),
        Route("/metrics", all_metrics),
        Route("/version", version),
    ]
