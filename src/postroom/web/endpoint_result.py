"""What an endpoint has returned, as a response: built inside its transaction, so that it can be stored there."""

from __future__ import annotations

import sys
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from postroom.errors import ArgumentTypeError


async def response_of(result: Any, request: Request, injected: Response | None) -> Response:
    """Returns a response as it is; of any other result, the response that FastAPI makes by the options of its route.

    `injected`: carries the headers and the status that dependencies have set.
    """
    if isinstance(result, Response):
        return result
    route: Any = request.scope.get("route")
    fastapi: Any = sys.modules.get("fastapi.routing")
    if fastapi is None or not hasattr(route, "response_field"):
        raise ArgumentTypeError(
            f"the endpoint returned {type(result).__name__}: return a Response, such as a JSONResponse"
        )
    content = await fastapi.serialize_response(
        field=route.response_field,
        response_content=result,
        include=route.response_model_include,
        exclude=route.response_model_exclude,
        by_alias=route.response_model_by_alias,
        exclude_unset=route.response_model_exclude_unset,
        exclude_defaults=route.response_model_exclude_defaults,
        exclude_none=route.response_model_exclude_none,
        is_coroutine=True,
    )
    made: type[Response] = getattr(route.response_class, "value", route.response_class)  # a default is wrapped
    status = (None if injected is None else injected.status_code) or route.status_code or 200
    response = made(content, status)
    if status < 200 or status in {204, 304}:
        response.body = b""
    if injected is not None:
        response.raw_headers.extend(injected.raw_headers)
    return response


def body_of(response: Response) -> bytes | None:
    """Returns the body of a response; None of one that is streamed."""
    body = getattr(response, "body", None)
    return bytes(body) if isinstance(body, bytes | memoryview) else None
