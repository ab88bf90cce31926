"""What all signature schemes share: headers, secrets, comparison in constant time, and the result."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from postroom._boxes import check
from postroom.cloudevents.event import CloudEventError
from postroom.cloudevents.json_format import load_json
from postroom.errors import ArgumentTypeError, ArgumentValueError, PostroomError

TOLERANCE = timedelta(minutes=5)
Secrets = str | bytes | Iterable[str | bytes]
"""One secret, or several while it is being changed."""
GivenHeaders = Mapping[Any, Any] | Iterable[tuple[Any, Any]]
"""The headers of a request: a mapping of any framework, or pairs of str or bytes."""

_TIMESTAMP = re.compile(r"[0-9]{1,12}")


class SignatureError(PostroomError, ValueError):
    """A delivery without a valid signature. The text says why, and has nothing of the delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery whose signature is valid."""

    source: str
    topic: str
    id: str | None
    """The sender's id. None: it has none that can be read, and `problem` says why."""
    payload: Any = field(repr=False)
    problem: str | None = None
    """Why it cannot be a message. It is then stored as a dead letter, with its raw bytes."""
    reply: bytes | None = None
    """A response that the sender waits for, in plain text. Such a delivery is not stored."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Headers of the message."""
    group: str | None = None
    received_at: datetime | None = None
    hash: bytes | None = None
    """The content hash. None: that of the body."""


class Headers:
    """The headers of a request, by name in lower case."""

    def __init__(self, given: GivenHeaders) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in given.items() if isinstance(given, Mapping) else given:
            self._values.setdefault(_text(name).lower(), []).append(_text(value))

    def get(self, name: str) -> str | None:
        """Returns the value of a header that occurs once. None: it is missing, or occurs several times."""
        values = self._values.get(name, ())
        return values[0] if len(values) == 1 else None

    def required(self, name: str) -> str:
        """Returns the value of a header. Raises SignatureError unless it occurs once."""
        value = self.get(name)
        if value is None:
            raise SignatureError(f"the header {name} is missing, or occurs several times")
        return value

    def pairs(self) -> list[tuple[str, str]]:
        """Returns all headers."""
        return [(name, value) for name, values in self._values.items() for value in values]


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class Scheme:
    """How a provider signs its deliveries, and where they have their id and topic.

    For another provider, write a subclass with `check` and `read`.
    """

    def __init__(self, *, source: str) -> None:
        self.source = check.text("source", source)

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        raise NotImplementedError

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains: one delivery, or several in a batch."""
        raise NotImplementedError

    def verify(self, headers: GivenHeaders, body: bytes, *, now: float) -> list[Delivery]:
        """Returns what a request contains, if its signature is valid.

        Args:
            headers: the headers of the request, as a mapping or as pairs.
            body: the raw body. Not JSON that was decoded and encoded again.
            now: the Unix time, such as `time.time()`.

        Returns:
            One `Delivery`; several for a batch of CloudEvents.

        Raises:
            SignatureError: the signature is missing, wrong, too old or from the future.
        """
        known = Headers(headers)
        self.check(known, body, now)
        return self.read(known, body)

    def json_delivery(self, headers: Headers, body: bytes, *, id: object, topic: object, payload: Any) -> Delivery:  # noqa: A002
        """Returns the delivery of a JSON object, or one with a problem if its id or its topic is no text."""
        if isinstance(id, str) and id and isinstance(topic, str) and topic:
            return Delivery(source=self.source, topic=topic, id=id, payload=payload)
        return self.broken(body, "it has no id" if not (isinstance(id, str) and id) else "it has no type")

    def broken(self, body: bytes, problem: str) -> Delivery:
        """Returns a delivery that cannot be a message."""
        return Delivery(
            source=self.source, topic=f"{self.source[:240]}.undecodable", id=None, payload=body, problem=problem
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.source!r}>"  # never the secrets


def json_object(body: bytes | str) -> dict[str, Any] | None:
    """Returns the JSON object of a body; None if it is none."""
    try:
        loaded = load_json(body.encode() if isinstance(body, str) else body)
    except (CloudEventError, UnicodeEncodeError):
        return None
    return loaded if isinstance(loaded, dict) else None


def secret_list(secrets: Secrets | None) -> list[str | bytes]:
    """Returns the secrets as a list. Raises if there is none: a scheme without a secret would accept nothing."""
    if secrets is None:
        raise ArgumentTypeError("secrets is None: pass the secret of the endpoint (is its environment variable set?)")
    found = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    for secret in found:
        if not isinstance(secret, str | bytes):
            raise ArgumentTypeError(f"a secret is str or bytes, not {type(secret).__name__}")
    if not found or not all(found):
        raise ArgumentValueError("a secret is missing or empty: with it, anyone could sign")
    return found


def secret_keys(secrets: Secrets) -> list[bytes]:
    """Returns the secrets as the keys of an HMAC: their characters, in UTF-8."""
    return [secret.encode() if isinstance(secret, str) else secret for secret in secret_list(secrets)]


def has_match(expected: Iterable[bytes], given: Iterable[str]) -> bool:
    """Returns True if a given signature is one that is expected. Compares all of them, each in constant time."""
    candidates = [value.encode("utf-8", "surrogatepass") for value in given]
    matches = [hmac.compare_digest(one, other) for one in expected for other in candidates]
    return True in matches


def hmac_sha256(key: bytes, *parts: bytes) -> hmac.HMAC:
    """Returns the HMAC-SHA256 of the parts."""
    made = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        made.update(part)
    return made


def check_timestamp(text: str, now: float, tolerance: timedelta) -> str:
    """Returns a Unix time. Raises SignatureError if it is no number, or too far from `now` in either direction."""
    if not _TIMESTAMP.fullmatch(text):
        raise SignatureError("the timestamp of the signature is not a number")
    if abs(now - int(text)) > tolerance.total_seconds():
        raise SignatureError("the timestamp of the signature is too old, or in the future: check the clocks")
    return text


def check_match(expected: Iterable[bytes], given: Iterable[str]) -> None:
    """Raises SignatureError unless a given signature is one that is expected."""
    if not has_match(expected, given):
        raise SignatureError("no signature matches: check the secret, and pass the raw body")
