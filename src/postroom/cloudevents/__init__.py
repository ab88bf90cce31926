"""CloudEvents 1.0: structured, binary and batched, for HTTP, AMQP, Kafka and NATS.

    [event] = decode(headers, body, HTTP)
    await inbox.enqueue_many([to_message(event)])

    encoded = to_binary(from_message(message), KAFKA)

Nothing is generated: an event without `id`, `source`, `type` or `specversion` raises `CloudEventError`.
"""

from __future__ import annotations

from postroom.cloudevents.bindings import AMQP, HTTP, KAFKA, NATS, Binding, Encoded, decode, is_cloud_event, to_binary
from postroom.cloudevents.event import CloudEvent, CloudEventError
from postroom.cloudevents.json_format import to_batch, to_structured
from postroom.cloudevents.messages import from_message, to_message

__all__ = [
    "CloudEvent",
    "CloudEventError",
    # from and to transports
    "decode",
    "is_cloud_event",
    "to_binary",
    "to_structured",
    "to_batch",
    "Encoded",
    "Binding",
    "HTTP",
    "AMQP",
    "KAFKA",
    "NATS",
    # from and to messages
    "to_message",
    "from_message",
]
