"""Payloads: text and bytes pass through unchanged, everything else is JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from postroom._faces.check import check_encodable
from postroom._kernel.message import Format, Message, StoredMessage
from postroom.errors import ArgumentTypeError, ArgumentValueError, Undecodable


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
    if type(payload) is dict:
        return "json", encode_json(payload)
    if isinstance(payload, str):
        if not payload.isascii():
            check_encodable("payload", payload)
        return "text", payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return "bytes", bytes(payload)
    if payload is None:
        raise ArgumentTypeError("payload must not be None; an empty str is a valid payload")
    if is_pydantic(payload):
        return "json", _encode_pydantic(payload)
    return "json", encode_json(payload)


def encode_json(payload: Any) -> str:
    try:
        text = _encode(payload).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            f"a payload of type {type(payload).__name__} cannot be written as JSON ({type(error).__name__}): "
            "pass a dataclass, a msgspec Struct, a pydantic model, plain JSON values, str or bytes"
        ) from None
    if "null" in text:
        _refuse_non_finite(payload)
    return text


_NON_FINITE = {"null": ("null",), "constants": ("NaN", "Infinity")}
"""What pydantic writes for NaN and infinity, by the model's setting. As strings they are not lost."""


def _encode_pydantic(payload: Any) -> str:
    text: str = payload.model_dump_json()
    how = payload.model_config.get("ser_json_inf_nan", "null")
    if any(mark in text for mark in _NON_FINITE.get(how, ())):
        _refuse_non_finite(payload)
    return text


def _refuse_non_finite(payload: Any) -> None:
    """JSON has no NaN and no infinity: they are written as null. So a payload is searched only if it contains null."""
    if _may_be_non_finite(payload) and _is_non_finite(payload):
        raise ArgumentValueError(
            "the payload contains NaN or infinity, which JSON would turn into null: use None, a str or a Decimal"
        )


def _as_python(value: Any) -> Any:
    """A pydantic model with its floats as they are; of other types, which have none, nothing."""
    return value.model_dump() if is_pydantic(value) else None


_pack = msgspec.msgpack.Encoder(enc_hook=_as_python).encode
_PACKED = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""How MessagePack writes them: a float whose exponent is all ones. In text these bytes cannot follow each other."""


def _may_be_non_finite(payload: Any) -> bool:
    """To pack a payload and to look at the bytes is ten times as fast as to look at its values."""
    try:
        return _PACKED.search(_pack(payload)) is not None
    except (OverflowError, TypeError, ValueError):  # an integer of more than 64 bits, for instance
        return True


def _is_non_finite(payload: Any) -> bool:
    left = [msgspec.to_builtins(payload, enc_hook=_as_python)]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            left += value
        elif isinstance(value, float) and not math.isfinite(value):
            return True
    return False


def decode(message: StoredMessage) -> Message[Any]:
    """JSON as plain values. What does not decode stays text: a bad row must not cost a batch its other messages."""
    if message.format != "json":
        return message
    try:
        payload = _decode(message.payload)
    except (msgspec.DecodeError, RecursionError):
        return message
    return message.with_payload(payload)


Decode = Callable[[str | bytes, Format], Any]


def decoder(payload_type: Any) -> Decode:
    """A function that decodes a stored payload to the type that a handler takes; None leaves JSON as plain values.

    The function returns an `Undecodable` instead of raising it: one bad payload must not cost a batch the others.
    """
    try:
        decode_json = _json_decoder(payload_type)
    except TypeError as error:
        raise ArgumentTypeError(f"a payload cannot be decoded to {_name(payload_type)}: {error}") from None

    def decode_payload(payload: str | bytes, format_: Format) -> Any:
        if format_ != "json" and payload_type in (None, type(payload)):
            return payload
        try:
            return decode_json(payload)
        except Exception as error:  # noqa: BLE001 - a type's own validation may raise anything
            name = "valid JSON" if payload_type is None else f"a {_name(payload_type)}"
            return Undecodable(f"the payload is not {name} ({_what_safely(error, payload_type)})")

    return decode_payload


def _json_decoder(payload_type: Any) -> Callable[[str | bytes], Any]:
    if hasattr(payload_type, "model_validate_json"):
        return payload_type.model_validate_json
    return msgspec.json.Decoder(Any if payload_type is None else payload_type).decode


def _name(payload_type: Any) -> str:
    return str(getattr(payload_type, "__name__", payload_type))


_WITHOUT_VALUES = ("Expected `", "Object missing ", "JSON is malformed", "Input data was truncated")
_PATH = re.compile(r" - at `[^`]*`$")


def _what_safely(error: Exception, payload_type: Any) -> str:
    try:
        return _what(error, payload_type)
    except Exception:  # noqa: BLE001 - the error may be of any class of the user's
        return type(error).__name__


def _what(error: Exception, payload_type: Any) -> str:
    """What is wrong, without what the payload says: some of the texts quote its values, or its own keys."""
    if isinstance(error, msgspec.DecodeError):
        text = str(error)
        return text if text.startswith(_WITHOUT_VALUES) else "a value is not allowed" + "".join(_PATH.findall(text))
    errors = getattr(error, "errors", None)
    if hasattr(payload_type, "model_fields") and callable(errors):
        found = [(next(iter(item["loc"]), None), item["type"]) for item in errors()]
        return "; ".join(f"{name if name in payload_type.model_fields else 'payload'}: {kind}" for name, kind in found)
    return type(error).__name__
