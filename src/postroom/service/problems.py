"""Problem details (RFC 9457): the response to a request that the service does not accept."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from postroom.service.wire import Problem

MEDIA_TYPE = "application/problem+json"
_encoder = msgspec.json.Encoder()


class Refused(Exception):
    """A request that the service does not accept."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def problem_response(status: int, detail: str, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response with problem details. `detail` says what to do, and contains nothing of the body."""
    status = HTTPStatus(status)
    problem = Problem(title=status.phrase, status=status.value, detail=detail, request_id=request_id)
    return Response(_encoder.encode(problem), status.value, headers, MEDIA_TYPE)
