"""The content of a request whose body the framework may have read already."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from starlette.requests import Request

from postroom.web.asgi import Headers, length_of
from postroom.web.problems import too_large


async def content_of(request: Request, most: int) -> tuple[Headers, bytes]:
    """Returns the headers and the body to compare. Raises Refused for a body of more than `most` bytes.

    Of a form that is parsed already, the fields stand for the body, and the content type, whose boundary differs with
    each request, does not count.
    """
    headers: Headers = list(request.scope["headers"])
    if (length_of(headers) or 0) > most:
        raise too_large(most)
    try:
        body = await request.body()
    except RuntimeError:  # the stream is consumed
        return [], msgspec.msgpack.encode([await _field(*each) for each in (await request.form()).multi_items()])
    if len(body) > most:
        raise too_large(most)
    return headers, body


async def _field(name: str, value: Any) -> list[str | bytes | None]:
    if isinstance(value, str):
        return [name, value]
    content = await value.read()
    await value.seek(0)
    return [name, value.filename, value.content_type, hashlib.sha256(content).digest()]
