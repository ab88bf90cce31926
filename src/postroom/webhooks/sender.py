"""The sender: a handler of an outbox that signs webhooks, sends them, and disables endpoints that are gone."""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import json
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlsplit

from postroom._boxes import check
from postroom._boxes.new_message import NewMessage
from postroom._kernel.decide import Outcome
from postroom._kernel.message import Message
from postroom._kernel.texts import escape
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.webhooks.addresses import AddressRefused, PublicAddresses, Resolve, httpcore, resolve
from postroom.webhooks.endpoints import Endpoint, Endpoints
from postroom.webhooks.schedule import SCHEDULE, InFlight, next_delay, parse_retry_after
from postroom.webhooks.standard import is_sendable_id, sign

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("postroom.webhooks")

TOPIC = "webhook"
USER_AGENT = "postroom-webhooks"
RECHECK = timedelta(hours=1)
"""How long the messages of a disabled endpoint wait before they look again."""
PROVIDER_RETRY = timedelta(seconds=30)
_READ_BYTES = 16_384
_WITH_RETRY_AFTER = frozenset({429, 502, 503, 504})
_GONE = HTTPStatus.GONE.value

OnDisabled = Callable[[str, str], Awaitable[None] | None]
"""Called with the name of an endpoint and the reason, after it was disabled."""


def to_endpoint(
    endpoint: str,
    payload: Any,
    *,
    message_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    topic: str = TOPIC,
) -> NewMessage:
    """Returns the message that sends a webhook to an endpoint. Put it into an outbox with `enqueue_many`.

    The source of the message is the endpoint, so one event has one message for each endpoint, under the same id.

    Args:
        endpoint: the name of the endpoint.
        payload: the body: str and bytes are sent unchanged, other values as JSON. By Standard Webhooks an object with
            `type`, `timestamp` and `data`.
        message_id: the `webhook-id`, by which a receiver recognises duplicates. Visible ASCII. None: generated.
        headers: `content-type`, if it is not JSON.
        topic: the topic for which the sender is registered.

    Raises:
        ArgumentTypeError, ArgumentValueError: the id cannot be sent in a header.
    """
    if message_id is not None and not is_sendable_id(check.text("message_id", message_id)):
        raise ArgumentValueError("the message_id of a webhook must be visible ASCII: it is sent in a header")
    name = check.text("endpoint", endpoint)
    return NewMessage(topic, payload, source=name, message_id=message_id, headers=headers)


class _Result(NamedTuple):
    """What became of a request."""

    status: int | None
    """None: there was no response."""
    error: str = ""
    retry_after: timedelta | None = None


class Sender:
    """Sends the messages of an outbox as webhooks: `outbox.handler("webhook", concurrency=20)(sender)`.

    Each request is signed by Standard Webhooks, with the same id and a new timestamp for each attempt. Any status but
    2xx is a failure, redirects too. Failures are sent again on the schedule. A 410, and `disable_after` without one
    success, disable the endpoint: its messages wait until it is enabled.

    Args:
        endpoints: the endpoints of the application.
        timeout: how long one request may take in total.
        schedule: the delays after each failure, each ± 20 %. Retry-After may double a delay.
        max_in_flight: how many requests to one endpoint run at the same time, in this process.
        disable_after: an endpoint that fails for so long, without one success, is disabled.
        on_disabled: called with the name and the reason after an endpoint was disabled; plain or async.
        allow: networks that are allowed although they are not public, such as `"127.0.0.0/8"` in tests.
        ssl_context: the TLS settings. None: the defaults, with the certificates of the system.
        clock: returns the Unix time.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        timeout: timedelta = timedelta(seconds=20),
        schedule: Sequence[timedelta] = SCHEDULE,
        max_in_flight: int = 4,
        disable_after: timedelta = timedelta(hours=120),
        on_disabled: OnDisabled | None = None,
        allow: Iterable[str] = (),
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._endpoints = endpoints
        self._timeout = check.duration("timeout", timeout).total_seconds()
        self._schedule = tuple(check.duration("schedule", delay) for delay in schedule)
        if not self._schedule:
            raise ArgumentValueError("schedule is empty: it needs one delay at least")
        self._in_flight = InFlight(check.count("max_in_flight", max_in_flight))
        self._disable_after = check.duration("disable_after", disable_after)
        self._on_disabled = on_disabled
        self._allowed = [ipaddress.ip_network(network) for network in _networks(allow)]
        self._ssl_context = ssl_context
        self._clock = clock
        self._resolve: Resolve = resolve
        self._pools: dict[asyncio.AbstractEventLoop, httpcore.AsyncConnectionPool] = {}

    async def handle(self, message: Message[Any]) -> Outcome:
        """Sends one message, as the handler of an outbox. Returns its outcome."""
        name = message.source
        try:
            endpoint = await self._endpoints.find(name)
        except Exception as error:  # noqa: BLE001 - the application's own code; no attempt of the message is at fault
            _log.error("the endpoint of a webhook cannot be read: %s", type(error).__name__)
            return Outcome.RETRY.after(PROVIDER_RETRY)
        if endpoint is None:
            return Outcome.DEAD.because("there is no endpoint of this name")
        if not is_sendable_id(message.message_id):
            return Outcome.DEAD.because("the message id is not visible ASCII, so no header can carry it")
        if endpoint.disabled is not None:
            return Outcome.RETRY.after(RECHECK)
        if not self._in_flight.enter(name):
            return Outcome.RETRY.after(self._in_flight.defer(name))
        try:
            result = await self._post(endpoint, message)
        finally:
            self._in_flight.leave(name)
        return await self._outcome(name, message, result)

    async def close(self) -> None:
        """Closes the connections. Call it when the room has stopped."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    async def _outcome(self, name: str, message: Message[Any], result: _Result) -> Outcome:
        if result.status is not None and 200 <= result.status < 300:
            await self._report(self._endpoints.succeeded, name)
            return Outcome.SUCCESS
        if result.status == _GONE:
            await self._disable(name, "410 Gone")
            return Outcome.RETRY.after(RECHECK)
        now = datetime.fromtimestamp(self._clock(), UTC)
        since = await self._report(self._endpoints.failed, name, now)
        if since is not None and now - since >= self._disable_after:
            hours = self._disable_after / timedelta(hours=1)
            await self._disable(name, f"no success for {hours:g} hours; last: {result.error}")
            return Outcome.RETRY.after(RECHECK)
        delay = next_delay(message.attempt, self._schedule, result.retry_after)
        return Outcome.FAILED.after(delay).because(result.error)

    async def _report(self, record: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T | None:
        """Returns what the application's code returns, or None if it fails: the outcome of a request stands."""
        try:
            return await record(*args, **options)
        except Exception as error:  # noqa: BLE001 - the application's own code
            _log.error("the state of an endpoint cannot be stored: %s", type(error).__name__)
            return None

    async def _disable(self, name: str, reason: str) -> None:
        if not await self._report(self._endpoints.disable, name, reason):
            return
        _log.error("endpoint %s is disabled: %s; its webhooks wait", escape(name), reason)
        if self._on_disabled is None:
            return
        try:
            called = self._on_disabled(name, reason)
            if inspect.isawaitable(called):
                await called
        except Exception as error:  # noqa: BLE001 - the application's own code
            _log.error("on_disabled failed: %s", type(error).__name__)

    async def _post(self, endpoint: Endpoint, message: Message[Any]) -> _Result:
        body = _body(message)
        headers = {
            "content-type": message.headers.get("content-type", "application/json"),
            "user-agent": USER_AGENT,
            "content-length": str(len(body)),
        }
        try:
            headers.update(sign(endpoint.secrets, message.message_id, int(self._clock()), body))
            async with asyncio.timeout(self._timeout):
                return await self._request(endpoint.url, headers, body)
        except TimeoutError:
            return _Result(None, f"no response within {self._timeout:g} seconds")
        except AddressRefused:
            return _Result(None, "the host has no public address")
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, ssl.SSLError) as error:
            return _Result(None, f"the request failed: {type(error).__name__}")

    async def _request(self, url: str, headers: dict[str, str], body: bytes) -> _Result:
        given = [("host", urlsplit(url).netloc), *headers.items()]  # httpcore leaves out the brackets of IPv6
        async with self._pool().stream("POST", url, headers=given, content=body) as response:
            size = 0
            async for chunk in response.aiter_stream():  # a connection can be used again if its body was read
                size += len(chunk)
                if size > _READ_BYTES:
                    break
        status = response.status
        retry_after = next((value for name, value in response.headers if name.lower() == b"retry-after"), None)
        if status not in _WITH_RETRY_AFTER or retry_after is None:
            note = ": redirects are not followed" if 300 <= status < 400 else ""
            return _Result(status, f"HTTP {status}{note}")
        now = datetime.fromtimestamp(self._clock(), UTC)
        return _Result(status, f"HTTP {status}", parse_retry_after(retry_after.decode("latin-1"), now))

    def _pool(self) -> httpcore.AsyncConnectionPool:
        """Returns the pool of this event loop. It has no limit: the concurrency of the outbox bounds the requests."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = httpcore.AsyncConnectionPool(
                ssl_context=self._ssl_context,
                max_connections=None,
                max_keepalive_connections=20,
                keepalive_expiry=30,
                network_backend=PublicAddresses(self._allowed, self._resolve),
            )
        return self._pools[loop]


def _networks(allow: Iterable[str]) -> list[str]:
    if isinstance(allow, str):
        raise ArgumentTypeError('allow is a list of networks, such as ["127.0.0.0/8"]')
    return list(allow)


def _body(message: Message[Any]) -> bytes:
    payload = message.payload
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
