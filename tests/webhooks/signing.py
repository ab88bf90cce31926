"""Signs deliveries as their providers do, written down a second time: the tests do not use the code under test."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

from postroom.webhooks import GitHub, Scheme, Shopify, Slack, StandardWebhooks, Stripe

NOW = 1_700_000_000
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HMAC_KEY = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


def digest(content: bytes, key: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def stripe(body: bytes, at: int = NOW, secret: str = SECRET) -> dict[str, str]:
    return {"Stripe-Signature": f"t={at},v1={digest(b'%d.' % at + body, secret.encode()).hex()}"}


def github(body: bytes, at: int = NOW, secret: str = SECRET) -> dict[str, str]:
    return {
        "X-Hub-Signature-256": f"sha256={digest(body, secret.encode()).hex()}",
        "X-GitHub-Delivery": "d-1",
        "X-GitHub-Event": "push",
    }


def standard(body: bytes, at: int = NOW, secret: str = SECRET) -> dict[str, str]:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = base64.b64encode(digest(b"msg_1.%d." % at + body, key)).decode()
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": f"v1,{signature}"}


def slack(body: bytes, at: int = NOW, secret: str = SECRET) -> dict[str, str]:
    signature = digest(b"v0:%d:" % at + body, secret.encode()).hex()
    return {"X-Slack-Request-Timestamp": str(at), "X-Slack-Signature": f"v0={signature}"}


def shopify(body: bytes, at: int = NOW, secret: str = SECRET) -> dict[str, str]:
    return {
        "X-Shopify-Hmac-SHA256": base64.b64encode(digest(body, secret.encode())).decode(),
        "X-Shopify-Topic": "orders/create",
        "X-Shopify-Webhook-Id": "w-1",
        "X-Shopify-Event-Id": "e-1",
    }


@dataclass(frozen=True)
class Provider:
    """A provider: how it signs, a body, and what becomes of it."""

    name: str
    scheme: Any
    sign: Any
    signature: str
    """The header that has the signature."""
    body: bytes
    topic: str
    id: str
    timed: bool = True

    def make(self, secrets: Any = SECRET, **options: Any) -> Scheme:
        scheme: Scheme = self.scheme(secrets, **options)
        return scheme


OTHER = "whsec_" + base64.b64encode(b"another secret of an endpoint").decode()
PROVIDERS = [
    Provider(
        "stripe",
        Stripe,
        stripe,
        "Stripe-Signature",
        '{"id": "evt_1", "type": "charge.succeeded", "name": "Zoë"}'.encode(),
        "stripe.charge.succeeded",
        "evt_1",
    ),
    Provider("github", GitHub, github, "X-Hub-Signature-256", b'{"ref": "main"}', "github.push", "d-1", timed=False),
    Provider(
        "standard",
        StandardWebhooks,
        standard,
        "webhook-signature",
        b'{"type": "user.created", "data": {"id": 1}}',
        "user.created",
        "msg_1",
    ),
    Provider(
        "slack",
        Slack,
        slack,
        "X-Slack-Signature",
        b'{"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}',
        "slack.app_mention",
        "Ev1",
    ),
    Provider(
        "shopify",
        Shopify,
        shopify,
        "X-Shopify-Hmac-SHA256",
        b'{"id": 820982911946154508}',
        "shopify.orders/create",
        "w-1",
        timed=False,
    ),
]
