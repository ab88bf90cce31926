"""`Idempotency-Key` for every route of an ASGI app."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from postroom._boxes import check
from postroom._boxes.guard.guard import Guard
from postroom.errors import ArgumentTypeError
from postroom.web import problems
from postroom.web.asgi import ASGIApp, Headers, Receive, Scope, Send, send_whole
from postroom.web.keys import Anonymous
from postroom.web.problems import Refused, send_problem
from postroom.web.request_body import Disconnected, read_body, receive_again
from postroom.web.response import RecordedResponse
from postroom.web.rules import MAX_BODY_SIZE, PrincipalOf, Rules
from postroom.web.stored import StoredResponse

BODY_TIMEOUT = timedelta(seconds=30)
_NOT_RECORDABLE = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")
"""Extensions by which an app sends what the middleware does not see: the app is not offered them."""


class IdempotencyMiddleware:
    """Handles each request with an `Idempotency-Key` once, and sends its stored response to repetitions.

    Pure ASGI: it needs no other package. Add it inside of what authenticates.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        guard: Guard,
        principal: PrincipalOf | Anonymous,
        methods: Collection[str] = ("POST", "PATCH"),
        required: bool = False,
        wait: timedelta | None = None,
        keep_statuses: Collection[int] = (),
        max_body_size: int = MAX_BODY_SIZE,
        body_timeout: timedelta = BODY_TIMEOUT,
    ) -> None:
        """Wraps an app.

        Args:
            app: the app.
            guard: a guard with `mode="lease"`. Its `max_result_size` bounds what is stored of a response.
            principal: a function that takes the ASGI scope and returns who sends the request: an id, never a secret.
                None is refused with 401. `ANONYMOUS`: the service has no callers that it could tell apart.
            methods: the methods of the requests that are handled once.
            required: whether a request without a key is refused with 400. False: it is handled as without this.
            wait: how long a repetition waits for the first request. None: as the guard has it.
            keep_statuses: statuses from 400 on whose responses are stored too. Others release the key.
            max_body_size: the longest body of a request with a key, in bytes.
            body_timeout: how long the body of a request with a key may take to arrive.

        Raises:
            ArgumentTypeError, ArgumentValueError: a guard of sync code or of another mode, or a bad option.
        """
        self._app = app
        self._rules = Rules(
            guard, "lease", principal, wait=wait, keep_statuses=keep_statuses, max_body_size=max_body_size
        )
        if isinstance(methods, str):
            raise ArgumentTypeError('methods must be a collection, such as ("POST", "PATCH")')
        self._methods = frozenset(check.text("methods", method).upper() for method in methods)
        self._required = check.flag("required", required)
        self._body_timeout = check.duration("body_timeout", body_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request, or whatever else a server sends."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        try:
            record = await self._rules.record_of(scope, scope["headers"], scope["method"], scope["path"])
            if record is not None:
                await self._handle_once(record, scope, receive, send)
                return
        except Refused as refused:
            await send_problem(send, refused.problem)
            return
        except Disconnected:
            return
        if self._required:
            await send_problem(send, problems.MISSING)
            return
        await self._app(scope, receive, send)

    async def _handle_once(self, record: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = list(scope["headers"])
        most = self._rules.max_body_size
        # Before the key is taken: a slow client holds no lease.
        body = await read_body(receive, headers, most=most, within=self._body_timeout)
        begun = await self._rules.begin(record, headers, scope.get("query_string", b""), body)
        if isinstance(begun, StoredResponse):
            await send_whole(send, begun.status, begun.replayed_headers, begun.body)
            return
        response = RecordedResponse(self._rules, begun, send)
        try:
            await self._app(_recordable(scope), receive_again(body, receive), response.send)
        except BaseException as error:
            await response.close(error)
            raise
        await response.close(None)


def _recordable(scope: Scope) -> Scope:
    extensions = scope.get("extensions") or {}
    if not any(name in extensions for name in _NOT_RECORDABLE):
        return scope
    return {**scope, "extensions": {name: each for name, each in extensions.items() if name not in _NOT_RECORDABLE}}
