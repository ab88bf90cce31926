"""Payloads: text and bytes pass through unchanged, everything else is JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import msgspec

from postroom._boxes.check import check_encodable
from postroom._boxes.typed_messages import PydanticModel, is_pydantic
from postroom._kernel.message import AnyMessage, Format, StoredMessage
from postroom.errors import ArgumentTypeError, ArgumentValueError, Undecodable


def _dump_pydantic(value: object) -> object:
    """Encodes a pydantic model inside another value."""
    if is_pydantic(value):
        return value.model_dump(mode="json")
    raise TypeError


_encode = msgspec.json.Encoder(enc_hook=_dump_pydantic).encode
_decode = msgspec.json.Decoder().decode


def encode(payload: object) -> tuple[Format, str | bytes]:
    """Returns the format and the content of a payload, as they are stored."""
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


def encode_json(payload: object) -> str:
    """Returns a payload as JSON. Raises ArgumentTypeError if it has no JSON form, ArgumentValueError for NaN."""
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
"""What pydantic writes for NaN and infinity, by the setting of the model. The setting "strings" loses nothing."""


def _encode_pydantic(payload: PydanticModel) -> str:
    text = payload.model_dump_json()
    how = str(payload.model_config.get("ser_json_inf_nan", "null"))
    if any(mark in text for mark in _NON_FINITE.get(how, ())):
        _refuse_non_finite(payload)
    return text


def _refuse_non_finite(payload: object) -> None:
    """Raises if a payload contains NaN or infinity, which JSON has as null. Called only if its JSON contains null."""
    if _may_be_non_finite(payload) and _is_non_finite(payload):
        raise ArgumentValueError(
            "the payload contains NaN or infinity, which JSON would turn into null: use None, a str or a Decimal"
        )


def _as_python(value: object) -> object:
    """Returns a pydantic model as plain values with its floats; None for other types, which have none."""
    return value.model_dump() if is_pydantic(value) else None


_pack = msgspec.msgpack.Encoder(enc_hook=_as_python).encode
_PACKED = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""NaN and infinity in MessagePack: a float whose exponent is all ones. This sequence of bytes is not valid UTF-8."""


def _may_be_non_finite(payload: object) -> bool:
    """Returns False if the packed payload has no NaN or infinity. Ten times as fast as a check of each value."""
    try:
        return _PACKED.search(_pack(payload)) is not None
    except (OverflowError, TypeError, ValueError):  # an integer of more than 64 bits, for instance
        return True


def _is_non_finite(payload: object) -> bool:
    """Returns True if any value of the payload is NaN or infinity."""
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


def decode(message: StoredMessage) -> AnyMessage:
    """Returns the message with its JSON payload as plain values.

    A payload that cannot be decoded stays text: a bad row must not cost a batch its other messages.
    """
    if message.format != "json":
        return message
    try:
        payload = _decode(message.payload)
    except (msgspec.DecodeError, RecursionError):
        return message
    return message.with_payload(payload)


class Decoder:
    """Decodes stored payloads to the type that a handler takes; None: to plain values."""

    __slots__ = ("_payload_type", "json")

    def __init__(self, payload_type: object) -> None:
        self._payload_type = payload_type
        try:
            self.json = _json_decoder(payload_type)
            """Decodes JSON, and raises what a type's own validation raises."""
        except TypeError as error:
            raise ArgumentTypeError(f"a payload cannot be decoded to {_name(payload_type)}: {error}") from None

    def __call__(self, payload: str | bytes, format_: Format) -> object:
        """Returns the decoded payload; or an `Undecodable`, which is not raised, since one bad payload must not cost a
        batch the others."""
        payload_type = self._payload_type
        if format_ != "json" and payload_type in (None, type(payload)):
            return payload
        try:
            return self.json(payload)
        except Exception as error:  # noqa: BLE001 - a type's own validation may raise anything
            name = "valid JSON" if payload_type is None else f"a {_name(payload_type)}"
            return Undecodable(f"the payload is not {name} ({_reason_safely(error, payload_type)})")


def _json_decoder(payload_type: object) -> Callable[[str | bytes], object]:
    if hasattr(payload_type, "model_validate_json"):
        validate: Callable[[str | bytes], object] = payload_type.model_validate_json
        return validate
    return _decode if payload_type is None else msgspec.json.Decoder(payload_type).decode


def _name(payload_type: object) -> str:
    return str(getattr(payload_type, "__name__", payload_type))


_WITHOUT_VALUES = ("Expected `", "Object missing ", "JSON is malformed", "Input data was truncated")
_PATH = re.compile(r" - at `[^`]*`$")


def _reason_safely(error: Exception, payload_type: object) -> str:
    try:
        return _reason(error, payload_type)
    except Exception:  # noqa: BLE001 - the error may be of any class of the user's
        return type(error).__name__


def _reason(error: Exception, payload_type: object) -> str:
    """Returns what is wrong, without values or keys of the payload, which some error texts quote."""
    if isinstance(error, msgspec.DecodeError):
        text = str(error)
        return text if text.startswith(_WITHOUT_VALUES) else "a value is not allowed" + "".join(_PATH.findall(text))
    errors = getattr(error, "errors", None)
    if hasattr(payload_type, "model_fields") and callable(errors):
        found = [(next(iter(item["loc"]), None), item["type"]) for item in errors()]
        return "; ".join(f"{name if name in payload_type.model_fields else 'payload'}: {kind}" for name, kind in found)
    return type(error).__name__
