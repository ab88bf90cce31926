"""The results of guarded handlers: encoded when they are stored, decoded when a duplicate gets them."""

from __future__ import annotations

import msgspec

from postroom._boxes.codec import encode_json
from postroom._kernel.guard import Begun
from postroom._kernel.settlement import Result

_decode = msgspec.json.Decoder().decode


def encode_result(value: object) -> Result:
    """Returns a result as it is stored: bytes unchanged, everything else as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return Result(bytes(value), "bytes")
    return Result(encode_json(value), "json")


def size_of(result: Result) -> int:
    """Returns the size of a result in bytes."""
    payload = result.payload
    return len(payload) if isinstance(payload, bytes) or payload.isascii() else len(payload.encode())


def decoded(begun: Begun) -> Begun:
    """Returns what a store returned, with its result decoded."""
    return begun._replace(result=_decode(begun.result)) if begun.format == "json" else begun
