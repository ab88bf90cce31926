"""Webhooks: receive them into an inbox, and send them from an outbox.

    from postroom.webhooks import Receiver, Stripe

    app.add_route("/webhooks/stripe", Receiver(room.inbox(), Stripe(secret)))

    outbox.handler("webhook", concurrency=20)(Sender(endpoints))
    await outbox.enqueue_many([to_endpoint("acme", {"type": "user.created", "data": {}})])

Receiving needs no extra. Sending, and signatures with ed25519, need `postroom[webhooks]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.webhooks.endpoints import Endpoint, Endpoints, MemoryEndpoints
from postroom.webhooks.events import CloudEvents
from postroom.webhooks.providers import BearerToken, GitHub, Shopify, Slack, Stripe
from postroom.webhooks.receiver import Receiver, Response, SyncReceiver
from postroom.webhooks.scheme import Delivery, Headers, Scheme, SignatureError
from postroom.webhooks.standard import StandardWebhooks, sign

if TYPE_CHECKING:
    from postroom.webhooks.sender import Sender, to_endpoint

__all__ = [
    # receive
    "Receiver",
    "SyncReceiver",
    "Response",
    # how senders sign
    "Stripe",
    "GitHub",
    "StandardWebhooks",
    "Slack",
    "Shopify",
    "CloudEvents",
    "BearerToken",
    "Scheme",
    "Delivery",
    "Headers",
    "SignatureError",
    "sign",
    # send
    "Sender",
    "to_endpoint",
    "Endpoint",
    "Endpoints",
    "MemoryEndpoints",
]

_OF_SENDER = ("Sender", "to_endpoint")


def __getattr__(name: str) -> object:
    """Imports the sender with its first use: it needs an extra that receivers do not need."""
    if name in _OF_SENDER:
        from postroom.webhooks import sender

        return getattr(sender, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
