"""Receivers: verify a request, store it, and return the response. One program for sync and async code."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Literal, NamedTuple, TypedDict, Unpack

from postroom._boxes import check
from postroom._boxes.inbox import Inbox, SyncInbox, TenantInbox
from postroom._boxes.new_message import NewMessage
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.webhooks import asgi
from postroom.webhooks.scheme import Delivery, GivenHeaders, Scheme, SignatureError

_log = logging.getLogger("postroom.webhooks")

MAX_BYTES = 1024 * 1024
RETRY_SECONDS = "5"


class Response(NamedTuple):
    """The response to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


class ReceiverOptions(TypedDict, total=False):
    """The options of a receiver. `Receiver` describes them."""

    max_bytes: int
    key: Literal["id", "body"]
    group: Callable[[Delivery], str | None] | None
    clock: Callable[[], float]


class ReceiverVerbs:
    """What both receivers have."""

    def __init__(
        self,
        inbox: Inbox | TenantInbox | SyncInbox,
        scheme: Scheme,
        *,
        max_bytes: int = MAX_BYTES,
        key: Literal["id", "body"] = "id",
        group: Callable[[Delivery], str | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(scheme, Scheme):
            raise ArgumentTypeError(f"scheme must be a Scheme, such as Stripe(secret), not {type(scheme).__name__}")
        self._inbox = inbox
        self._scheme = scheme
        self._max_bytes = check.count("max_bytes", max_bytes, most=1 << 30)
        self._key = check.choice("key", key, ("id", "body"))
        self._group = group
        self._clock = clock

    @verb
    def receive(self, headers: GivenHeaders, body: bytes) -> Program[Response]:
        """Verifies a request, stores what it contains, and returns the response to send. Raises nothing.

        Args:
            headers: the headers of the request: the mapping of your framework, or pairs.
            body: the raw body. Not JSON that was decoded and encoded again.

        Returns:
            A `Response` with status, headers and body: 200 after the commit, 401 for a bad signature, 413 if the body
            is too long, 503 if the store does not respond.
        """
        if len(body) > self._max_bytes:
            return too_large(self._max_bytes)
        try:
            deliveries = self._scheme.verify(headers, body, now=self._clock())
            return (yield from self._store(deliveries, body))
        except SignatureError as error:
            _log.warning("a webhook for %s was refused: %s", self._scheme.source, error)
            return problem(HTTPStatus.UNAUTHORIZED, "the signature is not valid")
        except Exception as error:  # noqa: BLE001 - whatever the store raises, the sender has to deliver again
            _log.error("a webhook of %s was not stored: %s", self._scheme.source, type(error).__name__)
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the store does not respond: deliver again",
                {"Retry-After": RETRY_SECONDS},
            )

    def _store(self, deliveries: list[Delivery], body: bytes) -> Program[Response]:
        for delivery in deliveries:
            if delivery.reply is not None:
                return Response(HTTPStatus.OK, {"Content-Type": "text/plain; charset=utf-8"}, delivery.reply)
        broken = next((delivery for delivery in deliveries if delivery.problem is not None), None)
        if broken is None:
            try:
                yield call(self._inbox.enqueue_many, self._messages(deliveries, body))
            except (ArgumentTypeError, ArgumentValueError, OverflowError) as error:
                # It was well signed, and a retry would fail in the same way.
                yield from self._keep(deliveries[0].topic, body, f"it cannot be a message: {error}")
        else:
            yield from self._keep(broken.topic, body, broken.problem or "")
        return Response(HTTPStatus.OK, {}, b"")

    def _messages(self, deliveries: list[Delivery], body: bytes) -> list[NewMessage]:
        digest = hashlib.sha256(body)
        return [
            NewMessage(
                delivery.topic,
                delivery.payload,
                source=delivery.source,
                message_id=_body_id(digest.hexdigest(), number) if self._key == "body" else delivery.id,
                headers=delivery.headers,
                group=delivery.group if self._group is None else self._group(delivery),
                received_at=delivery.received_at,
                hash=delivery.hash or digest.digest(),
                on_conflict="reject",  # the first delivery stands; ids of some senders are not signed
            )
            for number, delivery in enumerate(deliveries)
        ]

    def _keep(self, topic: str, body: bytes, error: str) -> Program[None]:
        """Stores the raw bytes as a dead letter. Its id is their hash, so it has no key of a good message."""
        digest = hashlib.sha256(body)
        usable = 0 < len(topic) <= check.MAX_TEXT and topic.isprintable() and topic.isascii()
        yield call(
            self._inbox.enqueue_dead,
            topic if usable else "undecodable",
            body,
            source=self._scheme.source,
            message_id=f"sha256:{digest.hexdigest()}",
            error=error,
            hash=digest.digest(),
        )


def _body_id(digest: str, number: int) -> str:
    """Returns the id of a message by its body: of the first, and of each further one in a batch."""
    return f"{digest}:{number}" if number else digest


class Receiver(ReceiverVerbs, Async, public="postroom.webhooks.Receiver"):
    """Receives webhooks into an inbox: an ASGI app for Starlette and FastAPI, and `receive` for other async code.

    Args:
        inbox: the inbox, of a room or of a tenant.
        scheme: how the sender signs: `Stripe`, `GitHub`, `StandardWebhooks`, `Slack`, `Shopify` or `CloudEvents`.
        max_bytes: the longest body. A longer one gets 413.
        key: `"id"`: the sender's id is the message id. `"body"`: the SHA-256 of the body is, for senders that do not
            sign their ids.
        group: from a `Delivery` to the FIFO group of its message.
        clock: returns the Unix time.
    """

    def __init__(self, inbox: Inbox | TenantInbox, scheme: Scheme, **options: Unpack[ReceiverOptions]) -> None:
        if not isinstance(inbox, Inbox | TenantInbox):
            raise ArgumentTypeError(f"a Receiver needs an inbox of an async room, not {type(inbox).__name__}")
        super().__init__(inbox, scheme, **options)

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Handles a request, as an ASGI app: POST only."""
        if scope["type"] != "http":
            raise ArgumentValueError("a Receiver handles HTTP requests only: mount it, or add it as a route")
        if scope["method"] != "POST":
            response = problem(HTTPStatus.METHOD_NOT_ALLOWED, "use POST", {"Allow": "POST"})
        else:
            try:
                body = await asgi.read_body(scope["headers"], receive, self._max_bytes)
            except asgi.BodyTooLarge:
                response = too_large(self._max_bytes)
            except asgi.BodyTooSlow:
                response = problem(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time", asgi.CLOSE)
            except asgi.Disconnected:
                return
            else:
                response = await self.receive(scope["headers"], body)
        await asgi.respond(send, response.status, response.headers, response.body)


class SyncReceiver(ReceiverVerbs, Sync, public="postroom.webhooks.SyncReceiver"):
    """Receives webhooks into an inbox of `postroom.sync`, for a view of Django or Flask: call `receive`.

    Its arguments are those of `Receiver`.
    """

    def __init__(self, inbox: SyncInbox, scheme: Scheme, **options: Unpack[ReceiverOptions]) -> None:
        if not isinstance(inbox, SyncInbox):
            raise ArgumentTypeError(f"a SyncReceiver needs an inbox of postroom.sync, not {type(inbox).__name__}")
        super().__init__(inbox, scheme, **options)


def problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Returns a response with problem details. They contain nothing of the request."""
    body = json.dumps({"title": status.phrase, "status": status.value, "detail": detail}).encode()
    return Response(status.value, {"Content-Type": "application/problem+json", **(headers or {})}, body)


def too_large(most: int) -> Response:
    """Returns the response to a body that is too long."""
    return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {most} bytes at most", asgi.CLOSE)
