"""Problem details (RFC 9457): the responses to requests that an idempotency key does not let through."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from postroom.web.asgi import Headers, Send, send_whole

MEDIA_TYPE = b"application/problem+json"
RETRY_SECONDS = b"1"


class Problem(NamedTuple):
    """One problem. Its text contains nothing of the request."""

    status: HTTPStatus
    name: str
    """The end of its type, by which a client recognises it."""
    detail: str
    retry: bool = False
    """Whether the same request may succeed later."""
    close: bool = False
    """Whether the rest of the request is not read."""

    @property
    def headers(self) -> Headers:
        headers = [(b"content-type", MEDIA_TYPE), (b"content-length", str(len(self.body)).encode())]
        if self.retry:
            headers.append((b"retry-after", RETRY_SECONDS))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers

    @property
    def body(self) -> bytes:
        body: dict[str, Any] = {
            "type": f"urn:postroom:idempotency:{self.name}",
            "title": self.status.phrase,
            "status": self.status.value,
            "detail": self.detail,
        }
        return msgspec.json.encode(body)


class Refused(Exception):
    """A request that is not handled."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


async def send_problem(send: Send, problem: Problem) -> None:
    """Sends a problem as a response."""
    await send_whole(send, problem.status.value, problem.headers, problem.body)


def malformed(detail: str) -> Refused:
    """Returns the refusal of a header that is no key."""
    return Refused(Problem(HTTPStatus.BAD_REQUEST, "malformed", f"Idempotency-Key: {detail}"))


def too_large(most: int) -> Refused:
    """Returns the refusal of a body with more than `most` bytes."""
    detail = f"the body of a request with an Idempotency-Key may have {most} bytes at most"
    return Refused(Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", detail, close=True))


def too_slow(seconds: float) -> Refused:
    """Returns the refusal of a body that has not arrived in time."""
    detail = f"the body did not arrive within {seconds:g} seconds"
    return Refused(Problem(HTTPStatus.REQUEST_TIMEOUT, "too-slow", detail, close=True))


MISSING = Problem(HTTPStatus.BAD_REQUEST, "missing", "send an Idempotency-Key, which is new for each operation")
NO_PRINCIPAL = Problem(
    HTTPStatus.UNAUTHORIZED, "no-principal", "an Idempotency-Key belongs to a caller: authenticate first"
)
REUSED = Problem(
    HTTPStatus.UNPROCESSABLE_ENTITY,
    "reused",
    "this Idempotency-Key was used for a request with other content: use a new key",
)
IN_PROGRESS = Problem(
    HTTPStatus.CONFLICT,
    "in-progress",
    "a request with this Idempotency-Key is in progress: repeat this one later, to get its response",
    retry=True,
)
REPLAY_UNAVAILABLE = Problem(
    HTTPStatus.CONFLICT,
    "replay-unavailable",
    "the request with this Idempotency-Key has succeeded, and its response was not stored: look up the result",
)
FAILED = Problem(
    HTTPStatus.CONFLICT,
    "failed",
    "the request with this Idempotency-Key has failed for good: use a new key",
)
NOT_RECORDED = Problem(
    HTTPStatus.CONFLICT,
    "not-recorded",
    "another request with this Idempotency-Key may have begun meanwhile: repeat this one, to get the outcome",
    retry=True,
)
UNAVAILABLE = Problem(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable",
    "the store of idempotency keys does not respond: repeat the request with the same key",
    retry=True,
)
