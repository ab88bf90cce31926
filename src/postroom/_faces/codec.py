"""Payloads: text and bytes pass through unchanged, everything else is JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from postroom._faces.check import check_encodable
from postroom._kernel.message import Format, Message, StoredMessage
from postroom.errors import ArgumentTypeError


def is_pydantic(value: Any) -> bool:
    return hasattr(type(value), "model_dump_json")


def _dump_pydantic(value: Any) -> Any:
    """A pydantic model inside another value."""
    if is_pydantic(value):
        return value.model_dump(mode="json")
    raise TypeError


_encode = msgspec.json.Encoder(enc_hook=_dump_pydantic).encode
_decode = msgspec.json.Decoder().decode


def encode(payload: Any) -> tuple[Format, str | bytes]:
    if isinstance(payload, str):
        if not payload.isascii():
            check_encodable("payload", payload)
        return "text", payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return "bytes", bytes(payload)
    if payload is None:
        raise ArgumentTypeError("payload must not be None; an empty str is a valid payload")
    if is_pydantic(payload):
        return "json", payload.model_dump_json()
    try:
        return "json", _encode(payload).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            f"a payload of type {type(payload).__name__} cannot be written as JSON ({type(error).__name__}): "
            "pass a dataclass, a msgspec Struct, a pydantic model, plain JSON values, str or bytes"
        ) from None


def decode(message: StoredMessage) -> Message[Any]:
    """JSON as plain values. What does not decode stays text: a bad row must not cost a batch its other messages."""
    if message.format != "json":
        return message
    try:
        payload = _decode(message.payload)
    except msgspec.DecodeError:
        return message
    return message.with_payload(payload)
