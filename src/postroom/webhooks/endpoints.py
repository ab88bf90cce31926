"""Endpoints: where webhooks are sent. The application stores them, and provides them to a sender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol
from urllib.parse import urlsplit

from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.webhooks.scheme import Secrets, secret_list
from postroom.webhooks.standard import signer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where webhooks are sent, and how they are signed.

    Args:
        url: an http or https URL, in ASCII, without a user.
        secrets: the secret (`whsec_…`) or private key (`whsk_…`). Two while it is being changed: each request is then
            signed with both.
        disabled: why nothing is sent to it, such as `"410 Gone"`. None: it is enabled.
    """

    url: str
    secrets: Secrets = field(repr=False)
    disabled: str | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        for secret in secret_list(self.secrets):
            signer(secret)  # raises for a malformed one


def _check_url(url: object) -> None:
    if not isinstance(url, str):
        raise ArgumentTypeError(f"url must be a str, not {type(url).__name__}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ArgumentValueError("the url of an endpoint must be ASCII without spaces: encode what is not")
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        raise ArgumentValueError("the url of an endpoint has a bad host or port") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not has_port:
        raise ArgumentValueError("the url of an endpoint must be https://host/… or http://host/…")
    if parts.username is not None or parts.password is not None:
        raise ArgumentValueError("the url of an endpoint must not contain a user or a password")


class Endpoints(Protocol):
    """The endpoints of an application. Implement it on your tables; the name of an endpoint is your id of it.

    If a method raises, messages wait, and no attempt is counted.
    """

    async def find(self, name: str) -> Endpoint | None:
        """Returns an endpoint; None if there is none of this name, whose messages are then dead letters."""

    async def succeeded(self, name: str) -> None:
        """Records that a request was accepted: the endpoint no longer fails."""

    async def failed(self, name: str, at: datetime) -> datetime:
        """Records a failure at this time. Returns the time of the first failure since the last success."""

    async def disable(self, name: str, reason: str) -> bool:
        """Disables an endpoint. Returns True if it was enabled, so that one worker reports it."""


class MemoryEndpoints:
    """Endpoints in memory, by name: for tests, and for programs that configure their endpoints when they start.

    It forgets failures when the process ends, and other processes do not see them.

    Args:
        endpoints: the endpoints by name.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint] | None = None) -> None:
        self._endpoints = dict(endpoints or {})
        self._failing: dict[str, datetime] = {}

    def put(self, name: str, endpoint: Endpoint) -> None:
        """Adds or replaces an endpoint. One that is replaced is enabled, unless the new one says otherwise."""
        self._endpoints[name] = endpoint
        self._failing.pop(name, None)

    async def find(self, name: str) -> Endpoint | None:
        """Returns the endpoint of this name."""
        return self._endpoints.get(name)

    async def succeeded(self, name: str) -> None:
        """Forgets the failures of an endpoint."""
        self._failing.pop(name, None)

    async def failed(self, name: str, at: datetime) -> datetime:
        """Returns the time of the first failure since the last success."""
        return self._failing.setdefault(name, at)

    async def disable(self, name: str, reason: str) -> bool:
        """Disables an endpoint. Returns True if it was enabled."""
        endpoint = self._endpoints.get(name)
        if endpoint is None or endpoint.disabled is not None:
            return False
        self._endpoints[name] = replace(endpoint, disabled=reason)
        return True
