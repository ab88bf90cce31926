"""Payloads: text and bytes pass through unchanged, everything else is JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from postroom._faces.check import check_encodable
from postroom._kernel.message import Format, Message, StoredMessage
from postroom.errors import ArgumentTypeError, Undecodable


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


def decode_as(message: StoredMessage, payload_type: Any) -> Message[Any]:
    """The payload as a handler wants it: as a type of its own, or plain where it named none."""
    if payload_type is None:
        return decode(message)
    if message.format != "json" and payload_type is type(message.payload):
        return message
    try:
        return message.with_payload(_decoder(payload_type)(message.payload))
    except ValueError as error:  # msgspec's and pydantic's errors are ValueErrors
        name = getattr(payload_type, "__name__", str(payload_type))
        raise Undecodable(f"the payload is not a {name} ({_where(error)})") from None


@lru_cache(maxsize=512)
def _decoder(payload_type: Any) -> Any:
    if hasattr(payload_type, "model_validate_json"):
        return payload_type.model_validate_json
    return msgspec.json.Decoder(payload_type).decode


def _where(error: ValueError) -> str:
    """What is wrong, without the values: pydantic's own text quotes them."""
    if hasattr(error, "errors"):
        return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'payload'}: {item['type']}" for item in error.errors())
    return str(error)
