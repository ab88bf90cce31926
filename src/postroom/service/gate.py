"""The gate: what every request passes. Request ids, tokens, the limit of requests in progress, metrics and the log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroom.service.metrics import Metrics
from postroom.service.problems import problem_response
from postroom.service.tokens import Tokens

_log = logging.getLogger("postroom.service")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
RETRY_SECONDS = "1"
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="postroom"'}


class Gate:
    """An ASGI middleware around all routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens | None,
        public: frozenset[str],
        max_in_flight: int,
        metrics: Metrics,
    ) -> None:
        """`tokens`: None if callers need none. `public`: the paths that need none, and are not limited."""
        self._app = app
        self._tokens = tokens
        self._public = public
        self._max_in_flight = max_in_flight
        self._metrics = metrics
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # a websocket is refused by the server, and the server has no lifespan
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        started, status = time.perf_counter(), 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        is_public = scope["path"] in self._public
        tokens = None if is_public else self._tokens
        caller = "-" if tokens is None else tokens.name_of(headers.get("authorization"))
        self.in_flight += 1
        self._metrics.in_flight.inc()
        try:
            if caller is None:
                detail = "send a known token: Authorization: Bearer TOKEN"
                refusal = problem_response(HTTPStatus.UNAUTHORIZED, detail, request_id, CHALLENGE)
                await refusal(scope, receive, send_with_id)
            elif self.in_flight > self._max_in_flight and not is_public:
                detail = "too many requests are in progress: try again later"
                retry = {"Retry-After": RETRY_SECONDS}
                refusal = problem_response(HTTPStatus.SERVICE_UNAVAILABLE, detail, request_id, retry)
                await refusal(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        finally:
            self.in_flight -= 1
            self._metrics.in_flight.dec()
            seconds = time.perf_counter() - started
            route = scope.get("route")
            path = getattr(route, "path", "-")  # the pattern, since a path may have a key
            self._metrics.responded(path, status, seconds)
            level = logging.INFO if status < 500 else logging.WARNING
            _log.log(
                level,
                "%s %s %d in %.1f ms caller=%s request=%s",
                scope["method"] if scope["method"].isalpha() else "-",
                path,
                status,
                seconds * 1000,
                caller or "-",
                request_id,
            )


def _request_id(given: str | None) -> str:
    """Returns the id that the caller gave, if it can be logged; otherwise a new one."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
