"""`Idempotency-Key` for one route: its writes, its stored response and the completion of its key are one commit."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from postroom._boxes.guard.async_run import AsyncRun
from postroom._boxes.guard.guard import Guard, store_of
from postroom.errors import CommitUnknown, ExtraMissing, LeaseLost
from postroom.web import problems
from postroom.web.asgi import Headers
from postroom.web.keys import Anonymous
from postroom.web.problems import Problem, Refused
from postroom.web.rules import MAX_BODY_SIZE, PrincipalOf, Rules
from postroom.web.stored import StoredResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from postroom.web.endpoint import Endpoint, Function

_log = logging.getLogger("postroom.web")


def idempotent(
    guard: Guard,
    *,
    principal: PrincipalOf | Anonymous,
    wait: timedelta | None = None,
    keep_statuses: Collection[int] = (),
    max_body_size: int = MAX_BODY_SIZE,
) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """Decorates an endpoint of Starlette or FastAPI, under the decorator of the route: `async def pay(request, tx)`.

    It runs once for each `Idempotency-Key`, in a transaction of the guard's store, which it gets as `tx`. What it
    writes there, its response and the completion of the key commit together. A repetition gets the stored response. A
    request without the header is refused.

    Args:
        guard: a guard with `mode="transactional"`. Its `max_result_size` bounds what is stored of a response.
        principal: a function that takes the request and returns who sends it: an id, never a secret. None is refused
            with 401. `ANONYMOUS`: the service has no callers that it could tell apart.
        wait: how long a repetition waits for the first request. None: as the guard has it.
        keep_statuses: statuses from 400 on whose responses commit and are stored too. Others roll back.
        max_body_size: the longest body of a request, in bytes.

    Returns:
        The decorator.

    Raises:
        ArgumentTypeError, ArgumentValueError: a guard of sync code or of another mode, a bad option, or a function
            that does not take `tx`.
        ExtraMissing: Starlette is not installed.
    """
    rules = Rules(
        guard, "transactional", principal, wait=wait, keep_statuses=keep_statuses, max_body_size=max_body_size
    )
    try:
        from postroom.web.endpoint import Endpoint
    except ImportError as error:
        raise ExtraMissing("idempotent needs Starlette: pip install 'postroom[web]'") from error

    def decorate(function: Function) -> Function:
        route = _Route(rules, Endpoint(function, store_of(guard)))

        @functools.wraps(function)
        async def once(*args: Any, **kwargs: Any) -> Any:
            return await route.respond(args, kwargs)

        once.__signature__ = route.endpoint.signature  # type: ignore[attr-defined]
        return once

    return decorate


class _Route:
    """A decorated endpoint."""

    def __init__(self, rules: Rules, endpoint: Endpoint) -> None:
        self._rules = rules
        self.endpoint = endpoint

    async def respond(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Response:
        request = self.endpoint.request_in(args, kwargs)
        try:
            begun = await self._begin(request)
            if isinstance(begun, StoredResponse):
                return _response(begun.status, begun.replayed_headers, begun.body)
        except Refused as refused:
            return _problem(refused.problem)
        response = await self._run(begun, request, args, kwargs)
        try:
            await begun.__aexit__(None, None, None)
        except LeaseLost:
            return _problem(problems.NOT_RECORDED)
        except Exception as error:
            if not isinstance(error, CommitUnknown) and not store_of(self._rules.guard).is_transient(error):
                raise
            _log.error("a request did not commit (%s): guard %s", type(error).__name__, self._rules.guard.name)
            return _problem(problems.UNAVAILABLE)
        return response

    async def _begin(self, request: Request) -> AsyncRun | StoredResponse:
        from postroom.web.endpoint_content import content_of

        scope, rules = request.scope, self._rules
        record = await rules.record_of(request, scope["headers"], scope["method"], scope["path"])
        if record is None:
            raise Refused(problems.MISSING)
        headers, body = await content_of(request, rules.max_body_size)
        return await rules.begin(record, headers, scope.get("query_string", b""), body)

    async def _run(self, run: AsyncRun, request: Request, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Response:
        """Returns the response of the endpoint, which the end of the run stores. An error rolls back."""
        from postroom.web.endpoint_result import body_of, response_of

        try:
            result = await self.endpoint.call(run.tx, args, kwargs)
            response = await response_of(result, request, self.endpoint.injected_response(kwargs))
            self._rules.keep(run, response.status_code, response.raw_headers, body_of(response))
        except BaseException as error:
            await run.__aexit__(type(error), error, error.__traceback__)
            raise
        return response


def _response(status: int, headers: Headers, body: bytes) -> Response:
    from starlette.responses import Response

    response = Response(body, status)
    response.raw_headers = headers
    return response


def _problem(problem: Problem) -> Response:
    return _response(problem.status, problem.headers, problem.body)
