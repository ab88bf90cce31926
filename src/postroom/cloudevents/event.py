"""An event: its attributes, and the rules that they obey."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from postroom.errors import PostroomError

SPECVERSION = "1.0"
REQUIRED = ("id", "source", "type")
OPTIONAL = ("datacontenttype", "dataschema", "subject", "time")
_RESERVED = frozenset({*REQUIRED, *OPTIONAL, "specversion", "data", "data_base64"})
_NAME = re.compile(r"[a-z0-9]+")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_INT32 = 2**31

AttributeValue = str | int | bool | bytes | datetime
"""The value of an extension."""


class CloudEventError(PostroomError, ValueError):
    """What was received, or is to be sent, is not a valid CloudEvent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEvent:
    """A CloudEvent 1.0. Raises CloudEventError for an attribute that the specification does not allow.

    Args:
        id: the id. Unique for the source.
        source: a URI reference.
        type: what happened, such as `com.example.order.placed`.
        subject: what it happened to, within the source.
        time: when it happened. Aware.
        datacontenttype: the media type of the data. None: JSON, or the data are bytes of an unknown type.
        dataschema: the URI of a schema.
        extensions: other attributes: names of a-z and 0-9, values of str, int (32 bits), bool, bytes or datetime.
        data: bytes; str, if the media type is not JSON; or any JSON value. None: the event has no data.
    """

    id: str
    source: str
    type: str
    subject: str | None = None
    time: datetime | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    extensions: Mapping[str, AttributeValue] = field(default_factory=dict)
    data: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in REQUIRED:
            _check_text(name, getattr(self, name))
        for name in ("subject", "datacontenttype", "dataschema"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        if self.time is not None:
            _check_time("time", self.time)
        if isinstance(self.data, bytearray | memoryview):
            object.__setattr__(self, "data", bytes(self.data))
        for name, value in self.extensions.items():
            check_extension(name, value)

    @property
    def has_json(self) -> bool:
        """True if the media type of the data is JSON, which it is by default."""
        return is_json(self.datacontenttype)

    def attributes(self) -> dict[str, AttributeValue]:
        """Returns all attributes that the event has, except `datacontenttype`."""
        named = {"specversion": SPECVERSION, "id": self.id, "source": self.source, "type": self.type}
        optional = {"dataschema": self.dataschema, "subject": self.subject, "time": self.time}
        return {**named, **{name: value for name, value in optional.items() if value is not None}, **self.extensions}


def is_json(media_type: str | None) -> bool:
    """Returns True for a JSON media type, and for None."""
    if media_type is None:
        return True
    subtype = media_type.partition(";")[0].strip().lower().partition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def check_extension(name: object, value: object) -> None:
    """Raises CloudEventError if an extension has a bad name or value."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        raise CloudEventError("the name of an extension must consist of a-z and 0-9, and must not be reserved")
    if isinstance(value, str):
        _check_characters(name, value)
    elif isinstance(value, datetime):
        _check_time(name, value)
    elif isinstance(value, int):
        if not -_INT32 <= value < _INT32:
            raise CloudEventError(f"{name} is an integer of more than 32 bits: pass it as a str")
    elif not isinstance(value, bytes):
        raise CloudEventError(f"{name} must be str, int, bool, bytes or datetime, not {type(value).__name__}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise CloudEventError(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise CloudEventError(f"{name} must not be empty")
    _check_characters(name, value)


def _check_characters(name: str, value: str) -> None:
    if _CONTROL.search(value):
        raise CloudEventError(f"{name} contains a control character, which a CloudEvent must not have")


def _check_time(name: str, value: object) -> None:
    if not isinstance(value, datetime):
        raise CloudEventError(f"{name} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise CloudEventError(f"{name} has no time zone: use an aware datetime, such as datetime.now(UTC)")


def parse_time(text: str) -> datetime:
    """Returns the time of an RFC 3339 text, cut to microseconds. Raises CloudEventError for another text."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise CloudEventError("time is not a timestamp of RFC 3339, such as 2018-04-05T17:31:00Z")
    date, minutes, seconds, fraction, zone = match.groups()
    seconds = min(seconds, "59") if seconds == "60" else seconds  # a leap second, which datetime does not have
    zone = "+00:00" if zone in "Zz" else zone
    try:
        return datetime.fromisoformat(f"{date}T{minutes}{seconds}{(fraction or '')[:7]}{zone}")
    except ValueError:
        raise CloudEventError("time is not a time that exists") from None


def format_time(value: datetime) -> str:
    """Returns a time as RFC 3339 text in UTC."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def to_text(value: AttributeValue) -> str:
    """Returns the canonical text of a value: what is written in a header."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return format_time(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def make_event(attributes: Mapping[str, Any], data: Any, datacontenttype: str | None) -> CloudEvent:
    """Returns the event that has these attributes, as they were received. Raises CloudEventError."""
    given = dict(attributes)
    missing = [name for name in ("specversion", *REQUIRED) if given.get(name) in (None, "")]
    if missing:
        raise CloudEventError(f"the event has no {', '.join(missing)}: it is refused, since nothing may be invented")
    if given.pop("specversion") != SPECVERSION:
        raise CloudEventError("the specversion is not 1.0, the only one that is understood")
    given.pop("datacontenttype", None)
    time = given.pop("time", None)
    if isinstance(time, str):
        time = parse_time(time)
    named = {name: given.pop(name, None) for name in (*REQUIRED, "subject", "dataschema")}
    return CloudEvent(
        **named,
        time=time,
        datacontenttype=datacontenttype,
        data=data,
        extensions={name: value for name, value in given.items() if value is not None},
    )
