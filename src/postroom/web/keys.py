"""What identifies a request: the key in its header, the key of its record, and the fingerprint of its content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import Enum
from typing import Final
from urllib.parse import quote

from postroom._boxes.check import MAX_TEXT
from postroom.web.asgi import values_of
from postroom.web.problems import malformed

HEADER = b"idempotency-key"
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
"""A string of structured fields (RFC 9651)."""
_BARE = re.compile(r"[\x21\x23-\x2b\x2d-\x7e]+")
"""Printable, without quotes, and without commas: a proxy joins two headers with a comma."""


class Anonymous(Enum):
    """The type of `ANONYMOUS`."""

    ANONYMOUS = "<anonymous>"


ANONYMOUS: Final = Anonymous.ANONYMOUS
"""As `principal`: the service has no callers that it could tell apart. Whoever knows a key gets its response."""


def key_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Returns the key in the header, quoted or bare; None if there is none. Raises Refused for what is no key."""
    values = values_of(headers, HEADER)
    if not values:
        return None
    if len(values) > 1:
        raise malformed("the header may occur once")
    try:
        text = values[0].decode("ascii").strip(" \t")
    except UnicodeDecodeError:
        raise malformed("only printable ASCII characters are allowed") from None
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif _BARE.fullmatch(text):
        key = text
    else:
        raise malformed("send one string of printable ASCII characters, in quotes or without quotes, commas and spaces")
    if not key:
        raise malformed("the key is empty")
    if len(key) > MAX_TEXT:
        raise malformed(f"a key has {MAX_TEXT} characters at most")
    return key


def record_key(principal: str | Anonymous, method: str, path: str, key: str) -> str:
    """Returns the key under which a guard has the record of a request: `await guard.get(record_key(…))`.

    It is the SHA-256 hash of the four, each percent-encoded so that different requests never have the same text. The
    key of a record is logged, and whoever has a principal and a key may get a response, so neither is part of it.

    Args:
        principal: who sent the request, or `ANONYMOUS`.
        method: the method, such as `"POST"`.
        path: the path, decoded, as in the ASGI scope.
        key: the key, without quotes.

    Returns:
        The text.
    """
    parts = ("" if isinstance(principal, Anonymous) else principal, method, path, key)
    text = ":".join(quote(part, safe="/", errors="surrogatepass") for part in parts)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def fingerprint(headers: Iterable[tuple[bytes, bytes]], query: bytes, body: bytes) -> bytes:
    """Returns a hash of what a request asks for: content type, query and body. Its record key has the rest."""
    digest = hashlib.sha256()
    for part in (b",".join(values_of(headers, b"content-type")), query):
        digest.update(len(part).to_bytes(8, "big") + part)
    digest.update(body)
    return digest.digest()
