"""Checks of arguments, the same for every box and store, before any I/O.

A function returns the checked value. It raises ArgumentTypeError for a wrong type, ArgumentValueError for a bad value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from postroom._kernel.limits import LATEST, LONGEST
from postroom.errors import ArgumentTypeError, ArgumentValueError

MAX_TEXT = 255
MAX_ERROR = 4000
MAX_HEADERS = 100
MAX_HEADERS_SIZE = 65_536
"""Bytes of all names and values, in UTF-8."""
MAX_BATCH = 100_000
MAX_SECONDS = 366 * 24 * 3600

T = TypeVar("T")


def _wrong_type(name: str, value: object, wanted: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def text(name: str, value: object, *, longest: int = MAX_TEXT) -> str:
    """Checks a name or an id: 1 to `longest` characters, which every database can store."""
    if type(value) is str and 0 < len(value) <= longest and value.isascii() and "\x00" not in value:
        return value  # nearly all; the checks below find what is wrong with the others
    if not isinstance(value, str):
        raise _wrong_type(name, value, "a str")
    if not value:
        raise ArgumentValueError(f"{name} must not be empty")
    if len(value) > longest:
        raise ArgumentValueError(f"{name} has {len(value)} characters; at most {longest} are allowed")
    if not value.isascii():
        check_encodable(name, value)
    if "\x00" in value:
        raise ArgumentValueError(f"{name} contains a NUL character, which not every database can store")
    return value


def are_plain(*values: object) -> bool:
    """Returns True if all values pass `text`. It checks them joined, in a third of the time. False: they may pass."""
    try:
        joined = "".join(values)  # type: ignore[arg-type]
    except TypeError:
        return False
    return all(values) and len(joined) <= MAX_TEXT and joined.isascii() and "\x00" not in joined


def optional_text(name: str, value: object) -> str | None:
    return None if value is None else text(name, value)


def check_encodable(name: str, value: str) -> None:
    _encoded(name, value)


def _encoded(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ArgumentValueError(f"{name} contains half of a surrogate pair, which no encoding can store") from None


def owner(value: object) -> UUID:
    if not isinstance(value, UUID):
        raise ArgumentTypeError(f"owner must be a UUID, not {type(value).__name__}; OwnerToken.new() makes one")
    if value.int == 0:
        raise ArgumentValueError("owner must not be the nil UUID; OwnerToken.new() makes a good one")
    return value


def count(name: str, value: object, *, most: int = MAX_BATCH) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(name, value, "an int")
    if not 0 < value <= most:
        raise ArgumentValueError(f"{name} must be between 1 and {most}, not {value}")
    return value


def lease(value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type("lease_seconds", value, "a number")
    if not (math.isfinite(value) and 0 < value <= MAX_SECONDS):
        raise ArgumentValueError(f"lease_seconds must be above 0 and at most {MAX_SECONDS}, not {value}")
    return timedelta(seconds=value)


def duration(name: str, value: object, *, zero: bool = False) -> timedelta:
    if not isinstance(value, timedelta):
        raise _wrong_type(name, value, "a timedelta")
    if value < timedelta() or (not zero and not value):
        raise ArgumentValueError(f"{name} must be {'0 or more' if zero else 'above 0'}, not {value}")
    if value > LONGEST:
        raise ArgumentValueError(f"{name} must not be longer than a hundred years")
    return value


def optional_duration(name: str, value: object, *, zero: bool = False) -> timedelta | None:
    return None if value is None else duration(name, value, zero=zero)


def moment(name: str, value: object) -> datetime:
    if not isinstance(value, datetime):
        raise _wrong_type(name, value, "a datetime")
    if value.utcoffset() is None:
        raise ArgumentValueError(f"{name} has no time zone: use an aware datetime, such as datetime.now(UTC)")
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise ArgumentValueError(f"{name} lies outside of what a datetime in UTC can say") from None
    if utc >= LATEST:
        raise ArgumentValueError(f"{name} must lie before the year {LATEST.year}, not in {utc.year}")
    return utc


def optional_moment(name: str, value: object) -> datetime | None:
    return None if value is None else moment(name, value)


def digest(value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong_type("hash", value, "bytes")
    return bytes(value)


def headers(value: object) -> Mapping[str, str] | None:
    if not isinstance(value, Mapping):
        raise _wrong_type("headers", value, "a mapping of str to str")
    if len(value) > MAX_HEADERS:
        raise ArgumentValueError(f"there are {len(value)} headers; at most {MAX_HEADERS} are allowed")
    size = 0
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise ArgumentTypeError("headers must map str to str")
        if len(key) > MAX_TEXT:
            raise ArgumentValueError(f"the name of a header has {len(key)} characters; at most {MAX_TEXT} are allowed")
        size += len(_encoded("headers", key)) + len(_encoded("headers", item))
    if size > MAX_HEADERS_SIZE:
        raise ArgumentValueError(
            f"the headers have {size} bytes; at most {MAX_HEADERS_SIZE} are allowed: put content in the payload"
        )
    return dict(value) or None


def choice(name: str, value: T, allowed: tuple[str, ...]) -> T:
    if value not in allowed:
        raise ArgumentValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "True or False")
    return value


def error_text(name: str, value: object, redact: Callable[[str], str] | None = None) -> str:
    """Returns an error text as it is stored: redacted, cleaned and cut, in this order. It may be empty."""
    if not isinstance(value, str):
        raise _wrong_type(name, value, "a str")
    if redact is not None:
        value = redact(value)
    clean = value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return clean if len(clean) <= MAX_ERROR else clean[: MAX_ERROR - 1] + "…"


def optional_error(name: str, value: object, redact: Callable[[str], str] | None = None) -> str | None:
    return None if value is None else error_text(name, value, redact) or None
