"""Responses as they are stored: which of them, and which of their headers."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.web.asgi import Headers, values_of

REPLAYED = (b"idempotency-replayed", b"true")
_DROPPED = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade date set-cookie idempotency-replayed".split()
)
"""Headers of one connection (RFC 9110), and those that are about one response."""


class StoredResponse(msgspec.Struct, array_like=True, frozen=True):
    """A response that repeated requests get."""

    status: int
    headers: Headers
    body: bytes
    version: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, stored: bytes) -> StoredResponse:
        return _decoder.decode(stored)

    @property
    def replayed_headers(self) -> Headers:
        return [*self.headers, REPLAYED]


_decoder = msgspec.msgpack.Decoder(StoredResponse)


def stored(status: int, headers: Headers, body: bytes) -> StoredResponse:
    """Returns a response as it is stored: without the headers that are not part of what a repetition gets."""
    named = {part.strip().lower() for value in values_of(headers, b"connection") for part in value.split(b",")}
    dropped = _DROPPED | named
    return StoredResponse(status, [(name, value) for name, value in headers if name.lower() not in dropped], body)


class KeptStatuses:
    """The statuses whose responses are stored: 2xx, 3xx and those that the user has chosen."""

    def __init__(self, chosen: Collection[int]) -> None:
        for status in chosen:
            if type(status) is not int:
                raise ArgumentTypeError("keep_statuses must be a collection of numbers, such as {404, 422}")
            if not 400 <= status <= 599:
                raise ArgumentValueError(
                    f"keep_statuses has {status}: name statuses from 400 to 599; 2xx and 3xx are always kept"
                )
        self._chosen = frozenset(chosen)

    def __contains__(self, status: int) -> bool:
        return 200 <= status <= 399 or status in self._chosen
