"""The schemes of Stripe, GitHub, Slack and Shopify, and bearer tokens."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Literal
from urllib.parse import parse_qs

from postroom._boxes import check
from postroom.webhooks.scheme import (
    TOLERANCE,
    Delivery,
    Headers,
    Scheme,
    Secrets,
    SignatureError,
    check_match,
    check_timestamp,
    hmac_sha256,
    json_object,
    secret_keys,
)


class Stripe(Scheme):
    """Stripe: `Stripe-Signature: t=…,v1=…`. Messages have the topic `stripe.<type of the event>`.

    Args:
        secrets: the signing secret of the endpoint (`whsec_…`), or several.
        source: the source of the messages. Give each account its own.
        tolerance: how far the time of the signature may be from now, in both directions.
    """

    def __init__(self, secrets: Secrets, *, source: str = "stripe", tolerance: timedelta = TOLERANCE) -> None:
        super().__init__(source=source)
        self._keys = secret_keys(secrets)
        self._tolerance = check.duration("tolerance", tolerance)

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        fields = [field.strip().partition("=") for field in headers.required("stripe-signature").split(",")]
        times = [value for name, _, value in fields if name == "t"]
        if len(times) != 1:
            raise SignatureError("the header stripe-signature has no timestamp, or several")
        time = check_timestamp(times[0], now, self._tolerance).encode()
        expected = [hmac_sha256(key, time, b".", body).hexdigest().encode() for key in self._keys]
        check_match(expected, [value for name, _, value in fields if name == "v1"])

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains."""
        event = json_object(body)
        if event is None:
            return [self.broken(body, "the body is not a JSON object")]
        kind = event.get("type")
        topic = f"stripe.{kind}" if isinstance(kind, str) and kind else None
        return [self.json_delivery(headers, body, id=event.get("id"), topic=topic, payload=event)]


class GitHub(Scheme):
    """GitHub: `X-Hub-Signature-256: sha256=…`. Messages have the topic `github.<event>`.

    GitHub signs the body only. The delivery id and the name of the event are not signed: a message with a known id and
    another body is rejected.

    Args:
        secrets: the secret of the webhook, or several.
        source: the source of the messages. Give each repository or organisation its own.
    """

    def __init__(self, secrets: Secrets, *, source: str = "github") -> None:
        super().__init__(source=source)
        self._keys = secret_keys(secrets)

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        expected = [b"sha256=" + hmac_sha256(key, body).hexdigest().encode() for key in self._keys]
        check_match(expected, [headers.required("x-hub-signature-256")])

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains."""
        event = json_object(_form_payload(body) if _is_form(headers) else body)
        if event is None:
            return [self.broken(body, "the body is not a JSON object")]
        kind = headers.get("x-github-event")
        topic = f"github.{kind}" if kind else None
        return [self.json_delivery(headers, body, id=headers.get("x-github-delivery"), topic=topic, payload=event)]


class Slack(Scheme):
    """Slack's Events API: `X-Slack-Signature: v0=…`. Messages have the topic `slack.<type of the event>`.

    The challenge of `url_verification` is returned, and not stored.

    Args:
        secrets: the signing secret of the app, or several.
        source: the source of the messages. Give each app its own.
        tolerance: how far the time of the signature may be from now, in both directions.
    """

    def __init__(self, secrets: Secrets, *, source: str = "slack", tolerance: timedelta = TOLERANCE) -> None:
        super().__init__(source=source)
        self._keys = secret_keys(secrets)
        self._tolerance = check.duration("tolerance", tolerance)

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        time = check_timestamp(headers.required("x-slack-request-timestamp"), now, self._tolerance).encode()
        expected = [b"v0=" + hmac_sha256(key, b"v0:", time, b":", body).hexdigest().encode() for key in self._keys]
        check_match(expected, [headers.required("x-slack-signature")])

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains."""
        event = json_object(body)
        if event is None:
            return [self.broken(body, "the body is not a JSON object")]
        challenge, kind = event.get("challenge"), event.get("type")
        if kind == "url_verification" and isinstance(challenge, str):
            reply = challenge.encode("utf-8", "replace")
            return [Delivery(source=self.source, topic="slack.url_verification", id=None, payload=event, reply=reply)]
        inner = event.get("event")
        if isinstance(inner, dict) and isinstance(inner.get("type"), str):
            kind = inner["type"]
        topic = f"slack.{kind}" if isinstance(kind, str) and kind else None
        return [self.json_delivery(headers, body, id=event.get("event_id"), topic=topic, payload=event)]


class Shopify(Scheme):
    """Shopify: `X-Shopify-Hmac-SHA256`. Messages have the topic `shopify.<topic>`, such as `shopify.orders/create`.

    Shopify signs the body only. The ids and the topic are not signed: a message with a known id and another body is
    rejected.

    Args:
        secrets: the client secret of the app, or several.
        source: the source of the messages. Give each shop its own.
        id_header: `"webhook"`: one message for each delivery, the default. `"event"`: one for each event, also if
            several subscriptions deliver it.
    """

    def __init__(
        self, secrets: Secrets, *, source: str = "shopify", id_header: Literal["webhook", "event"] = "webhook"
    ) -> None:
        super().__init__(source=source)
        self._keys = secret_keys(secrets)
        self._id_header = f"x-shopify-{check.choice('id_header', id_header, ('webhook', 'event'))}-id"

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        expected = [base64.b64encode(hmac_sha256(key, body).digest()) for key in self._keys]
        check_match(expected, [headers.required("x-shopify-hmac-sha256")])

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains."""
        event = json_object(body)
        if event is None:
            return [self.broken(body, "the body is not a JSON object")]
        kind = headers.get("x-shopify-topic")
        topic = f"shopify.{kind}" if kind else None
        return [self.json_delivery(headers, body, id=headers.get(self._id_header), topic=topic, payload=event)]


class BearerToken(Scheme):
    """`Authorization: Bearer <token>`, for `CloudEvents(signed_by=…)`: it proves the sender, not the body.

    Args:
        tokens: the token, or several.
    """

    def __init__(self, tokens: Secrets) -> None:
        super().__init__(source="bearer")
        self._tokens = secret_keys(tokens)

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        kind, _, token = headers.required("authorization").partition(" ")
        check_match(self._tokens, [token.strip()] if kind.lower() == "bearer" else [])

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains."""
        return [self.broken(body, "a bearer token says nothing of the body")]


def _is_form(headers: Headers) -> bool:
    media_type = (headers.get("content-type") or "").partition(";")[0].strip().lower()
    return media_type == "application/x-www-form-urlencoded"


def _form_payload(body: bytes) -> str:
    """Returns the field `payload` of a form; an empty text if there is none, or several."""
    try:
        values = parse_qs(body.decode(), max_num_fields=10).get("payload", [])
    except ValueError:
        return ""
    return values[0] if len(values) == 1 else ""
