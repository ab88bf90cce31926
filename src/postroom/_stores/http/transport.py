"""Requests to the service: bounded in time, repeated after a failure, and refused unless the response is understood.

Every verb may be repeated: a begin has the owner of its execution, a settlement the claim, and a message its key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import uuid4

import httpx2
import msgspec

from postroom._kernel.local import PerLoop, PerProcess
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.http import wire
from postroom._stores.http.token import ENVIRONMENT, Token
from postroom.errors import FeatureMissing, RoomClosed, ServiceError, ServiceRefused, ServiceUnavailable

T = TypeVar("T")

ATTEMPT_SECONDS = 5.0
"""How long one request may take. A call may take longer, since it repeats its request."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before a request is repeated, unless the service says how long; the pause doubles."""
OK, UNAVAILABLE = 200, 503

_REASONS = {
    400: "the service did not accept the request",
    401: f"the service does not know the token: set {ENVIRONMENT}, or pass token=",
    404: "the service has no such path: is the URL that of `postroom serve`, of at least this version?",
    413: "the request is too long: send less, or raise max_body_bytes of the service",
}
_encode = msgspec.json.Encoder().encode


class TransportVerbs:
    """The transport, for both modes."""

    _clients: PerProcess[Any]
    """A client of httpx2 for each event loop and process: connections cannot be shared."""

    def __init__(
        self, url: str, token: Token, *, name: str, seconds: float, pool_size: int, require_durable: bool = False
    ) -> None:
        """`seconds`: how long a call may take, repetitions included. `name`: the service in errors."""
        self.name = name
        self._seconds = seconds
        self._url = url
        self._token = token
        self._limits = httpx2.Limits(max_connections=pool_size, max_keepalive_connections=pool_size)
        self._is_checked = not require_durable
        self._closed = False

    def _client_options(self) -> dict[str, Any]:
        headers = {**self._token.headers(), "Accept": "application/json"}
        return {"base_url": self._url, "headers": headers, "limits": self._limits, "follow_redirects": False}

    def post(self, path: str, body: object, kind: type[T]) -> Program[T]:
        """Sends a body, and returns the response. This is a program, and not a verb."""
        if not self._is_checked:
            yield from self._check_durable()
        return (yield from self._exchange("POST", path, _encode(body), kind))

    def _check_durable(self) -> Program[None]:
        info = yield from self._exchange("GET", "/v1", b"", wire.Info)
        if not info.durable:
            raise FeatureMissing(f"{self.name} keeps nothing when its process ends, and require_durable is set")
        self._is_checked = True

    def _exchange(self, method: str, path: str, content: bytes, kind: type[T]) -> Program[T]:
        deadline, pause = time.monotonic() + self._seconds, FIRST_PAUSE
        request_id = uuid4().hex
        while True:
            if self._closed:
                raise RoomClosed
            left = deadline - time.monotonic()
            failure: ServiceUnavailable
            try:
                response = yield call(
                    self._clients.get().request,
                    method,
                    path,
                    content=content,
                    headers={"Content-Type": "application/json", "X-Request-ID": request_id},
                    timeout=max(min(left, ATTEMPT_SECONDS), 0.001),
                )
            except httpx2.TransportError as error:
                failure = ServiceUnavailable(f"{self.name} does not respond ({type(error).__name__})")
                failure.__cause__ = error
                wait = pause
            except httpx2.HTTPError as error:
                raise ServiceError(f"{self.name}: the response cannot be read ({type(error).__name__})") from error
            else:
                if response.status_code != UNAVAILABLE:
                    return self._read(response, kind, request_id)
                failure = ServiceUnavailable(f"{self.name} is overloaded, or its store does not respond")
                wait = max(pause, _retry_after(response))
            if time.monotonic() + wait >= deadline:
                raise failure
            yield call(self._pause, wait)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _read(self, response: httpx2.Response, kind: type[T], request_id: str) -> T:
        """Returns the body of a response. Raises unless it is what the protocol says."""
        status = response.status_code
        if status != OK:
            reason = _REASONS.get(status, "the service did not do what was asked")
            raise ServiceRefused(f"{self.name}: {reason} (status {status}, request {request_id})", status)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ServiceError(
                f"{self.name}: the response cannot be read: is the URL that of `postroom serve`? (request {request_id})"
            ) from None

    def _pause(self, seconds: float) -> object:
        raise NotImplementedError


def _retry_after(response: httpx2.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() else 0.0


class Transport(TransportVerbs, Async):
    """The transport for async code."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clients: PerLoop[httpx2.AsyncClient] = PerLoop(lambda: httpx2.AsyncClient(**self._client_options()))

    def _pause(self, seconds: float) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(seconds)

    @verb
    def close(self) -> Program[None]:
        self._closed = True
        client = self._clients.pop()
        if client is not None:
            yield call(client.aclose)


class SyncTransport(TransportVerbs, Sync):
    """The transport for sync code. It can be shared by threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clients: PerProcess[httpx2.Client] = PerProcess(lambda: httpx2.Client(**self._client_options()))

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    @verb
    def close(self) -> Program[None]:
        self._closed = True
        client = self._clients.pop()
        if client is not None:
            yield call(client.close)
