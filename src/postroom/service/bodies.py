"""Reads the bodies of requests: bounded in size and time, and checked."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request

from postroom.service.problems import Refused

BodyT = TypeVar("BodyT")
CLOSE = {"Connection": "close"}
"""For a response after which the rest of the body is not read."""


class BodyReader(Generic[BodyT]):
    """Reads the bodies of one route."""

    def __init__(self, kind: Any, *, max_bytes: int, seconds: float) -> None:
        """`kind`: what a body is decoded to. `seconds`: how long its arrival may take."""
        self._decoder: msgspec.json.Decoder[BodyT] = msgspec.json.Decoder(kind)
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def read(self, request: Request) -> BodyT:
        """Returns the body. Raises Refused for one that is too long, too slow or not as described."""
        self._check_headers(request)
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._receive(request)
        except TimeoutError:
            raise Refused(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {self._seconds:g} seconds", CLOSE
            ) from None
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"the body does not fit: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is not valid JSON") from None

    def _check_headers(self, request: Request) -> None:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body with Content-Type: application/json")
        length = request.headers.get("content-length")
        if length is None:
            if "chunked" not in request.headers.get("transfer-encoding", "").lower():
                raise Refused(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length")
        elif not length.isdecimal() or int(length) > self._max_bytes:
            raise self._too_large()

    async def _receive(self, request: Request) -> bytes:
        """Counts while it reads: a chunked body has no length."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._max_bytes:
                raise self._too_large()
            chunks.append(chunk)
        return b"".join(chunks)

    def _too_large(self) -> Refused:
        return Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body may have {self._max_bytes} bytes at most",
            CLOSE,
        )
