"""The ASGI app of the service."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from postroom import __version__
from postroom._kernel.clock import Clock, SystemClock
from postroom._room.running import Postroom
from postroom._stores.http import wire as shared
from postroom.errors import ArgumentTypeError, ArgumentValueError, OrderMismatch
from postroom.service import wire
from postroom.service.bodies import BodyReader
from postroom.service.gate import RETRY_SECONDS, Gate
from postroom.service.guards import ROUTES, GuardRoute, Guards
from postroom.service.health import health_routes
from postroom.service.keys import Keys, key_of
from postroom.service.messages import Messages
from postroom.service.metrics import Metrics
from postroom.service.openapi import describe
from postroom.service.problems import Refused, problem_response
from postroom.service.settings import Settings
from postroom.service.tokens import Tokens, parse_tokens

_log = logging.getLogger("postroom.service")
_encode = msgspec.json.Encoder().encode

BodyT = TypeVar("BodyT")
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)
PUBLIC = frozenset({"/v1", "/openapi.json", "/live", "/ready", "/metrics", "/version"})
"""The paths that need no token."""


class Readiness:
    """Whether the service is ready: it has started, does not stop, and its store responds."""

    def __init__(self, room: Postroom) -> None:
        self._room = room
        self.is_open = False

    async def check(self) -> bool:
        return self.is_open and await self._room.is_ready()


class Service(NamedTuple):
    """The apps of a service, and what a server needs to run them."""

    app: ASGIApp
    admin: ASGIApp | None
    """Health, metrics and version on another address; None: `app` has them."""
    room: Postroom
    readiness: Readiness


def make_service(settings: Settings, *, clock: Clock | None = None) -> Service:
    """Returns the service that these settings describe. It connects to its store with the first request.

    `clock`: for tests. None: the clock of the store.
    """
    room = Postroom(settings.url, prefix=settings.prefix, clock=clock)
    guard = room.guard(
        settings.guard,
        scope="message",
        keep_results=True,
        max_result_size=settings.max_body_bytes,
        retention=timedelta(days=settings.retention_days),
    )
    metrics, readiness = Metrics(), Readiness(room)
    longest = settings.max_lease_seconds
    guards = Guards(room.store, clock or SystemClock(), max_lease_seconds=longest)
    keys = Keys(guard, max_lease_seconds=longest)
    routes = _Routes(
        settings, keys, guards, Messages(room, settings.fifo_names), metrics, is_durable=room.features.durable
    )
    health = health_routes(readiness.check, metrics)

    def gated(all_routes: list[Route]) -> Gate:
        return Gate(
            Problems(Router(all_routes, redirect_slashes=False)),
            tokens=_tokens(settings),
            public=PUBLIC,
            max_in_flight=settings.max_in_flight,
            metrics=metrics,
        )

    if settings.admin is None:
        return Service(gated([*routes.all(), *health]), None, room, readiness)
    return Service(gated(routes.all()), gated(health), room, readiness)


def _tokens(settings: Settings) -> Tokens | None:
    if not settings.needs_token:
        return None
    file = None if settings.token_file is None else Path(settings.token_file)
    return Tokens(parse_tokens(settings.tokens, "tokens"), file, time.monotonic)


class Problems:
    """Turns errors of the routes into problem details."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # Starlette raises HTTPException for an unknown path, instead of a response in plain text
        try:
            _check_encoding(scope)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            pass  # there is no one to send a response to
        except Exception as error:  # noqa: BLE001 - each becomes a response
            status, detail, headers = _described(error)
            response = problem_response(status, detail, scope["state"]["request_id"], headers)
            await response(scope, receive, send)


def _check_encoding(scope: Scope) -> None:
    """Raises for bytes that are not UTF-8: the server replaces them, so that different names become the same."""
    target: bytes = (scope.get("raw_path") or b"") + b"?" + scope.get("query_string", b"")
    try:
        unquote_to_bytes(target).decode()
    except UnicodeDecodeError:
        raise Refused(HTTPStatus.BAD_REQUEST, "the path or the query is not valid UTF-8") from None


def _described(error: Exception) -> tuple[int, str, Mapping[str, str] | None]:
    """Returns the status, the detail and the headers of a problem. A detail contains nothing from outside."""
    if isinstance(error, Refused):
        return error.status, error.detail, error.headers
    if isinstance(error, HTTPException):
        detail = "there is no such path" if error.status_code == HTTPStatus.NOT_FOUND else "use another method"
        return error.status_code, detail, error.headers
    if isinstance(error, OrderMismatch):
        detail = "the inbox has another order than this service writes: see the setting fifo_inboxes"
        return HTTPStatus.BAD_REQUEST, detail, None
    if isinstance(error, ArgumentTypeError | ArgumentValueError):
        return HTTPStatus.BAD_REQUEST, str(error), None
    # Whatever the store raises: the service fails closed, and the caller tries again.
    _log.error("the store failed: %s", type(error).__name__)
    detail = "the store does not respond: try again later"
    return HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": RETRY_SECONDS}


class _Routes:
    """The routes of the wire protocol."""

    def __init__(
        self, settings: Settings, keys: Keys, guards: Guards, messages: Messages, metrics: Metrics, *, is_durable: bool
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._guards = guards
        self._is_durable = is_durable
        self._messages = messages
        self._metrics = metrics

    def all(self) -> list[Route]:
        keys = self._keys
        return [
            Route("/v1", self._info, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            self._post("/v1/inbox/try-begin", wire.TryBegin, keys.try_begin),
            self._post("/v1/inbox/mark-processed", wire.MarkProcessed, keys.mark_processed),
            self._post("/v1/inbox/release", wire.Release, keys.release),
            self._post("/v1/inbox/renew", wire.Renew, keys.renew),
            self._post("/v1/inbox/fail", wire.Fail, keys.fail),
            Route("/v1/inbox", self._report, methods=["GET"]),
            self._report_by_path(),
            self._post_messages(),
            *map(self._post_guards, ROUTES),
        ]

    def _post(self, path: str, kind: type[BodyT], handle: Callable[[BodyT], Awaitable[_Outcome]]) -> Route:
        reader: BodyReader[BodyT] = self._reader(kind)
        verb = path.rpartition("/")[2]

        async def endpoint(request: Request) -> Response:
            reply = await handle(await reader.read(request))
            self._metrics.outcome(verb, reply.status)
            return _json(reply)

        return Route(path, endpoint, methods=["POST"])

    def _post_messages(self) -> Route:
        reader: BodyReader[shared.AnyMessages] = self._reader(shared.AnyMessages)

        async def endpoint(request: Request) -> Response:
            receipts = await self._messages.store(request.path_params["box"], await reader.read(request))
            for receipt in receipts.receipts:
                self._metrics.outcome("messages", receipt.status)
            return _json(receipts)

        return Route("/v1/inboxes/{box:path}/messages", endpoint, methods=["POST"])

    def _post_guards(self, route: GuardRoute) -> Route:
        reader: BodyReader[Any] = self._reader(route.body)

        async def endpoint(request: Request) -> Response:
            return _json(await route.handle(self._guards, request.path_params["guard"], await reader.read(request)))

        return Route(f"/v1/guards/{{guard:path}}/{route.name}", endpoint, methods=["POST"])

    def _reader(self, kind: Any) -> BodyReader[Any]:
        return BodyReader(kind, max_bytes=self._settings.max_body_bytes, seconds=self._settings.body_seconds)

    def _report_by_path(self) -> Route:
        route = Route("/v1/inbox/{key:path}", self._report, methods=["GET"])
        route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)  # a key may contain a line break
        return route

    async def _report(self, request: Request) -> Response:
        return _json(await self._keys.report(key_of(request)))

    async def _info(self, _request: Request) -> Response:
        auth: Literal["bearer", "none"] = "bearer" if self._settings.needs_token else "none"
        return _json(shared.Info("postroom", __version__, ["v1"], auth, self._is_durable))

    async def _openapi(self, _request: Request) -> Response:
        return Response(_encode(describe(__version__)), media_type="application/json")


class _Outcome(Protocol):
    @property
    def status(self) -> str: ...


def _json(reply: object) -> Response:
    return Response(_encode(reply), media_type="application/json")
