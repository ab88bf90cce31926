"""CloudEvents over HTTP as deliveries: structured, binary and batched."""

from __future__ import annotations

from postroom.cloudevents.bindings import HTTP, decode
from postroom.cloudevents.event import CloudEvent, CloudEventError
from postroom.cloudevents.messages import GroupBy, to_message
from postroom.errors import ArgumentTypeError
from postroom.webhooks.scheme import Delivery, Headers, Scheme


class CloudEvents(Scheme):
    """CloudEvents over HTTP. Source, id and type of an event are source, id and topic of its message.

    Args:
        signed_by: the scheme that proves the sender, such as `StandardWebhooks(…)` or `BearerToken(…)`. None: requests
            are accepted from anyone who can reach the endpoint.
        group: the attribute that is the FIFO group, such as `"subject"` or `"partitionkey"`, or a function.
        source: the source of dead letters.
    """

    def __init__(self, *, signed_by: Scheme | None, group: GroupBy = None, source: str = "cloudevents") -> None:
        super().__init__(source=source)
        if not isinstance(signed_by, Scheme | None):
            raise ArgumentTypeError(f"signed_by must be a scheme or None, not {type(signed_by).__name__}")
        self._signed_by = signed_by
        self._group = group

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        if self._signed_by is not None:
            self._signed_by.check(headers, body, now)

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains."""
        try:
            return [self._delivery(event) for event in decode(headers.pairs(), body, HTTP)]
        except CloudEventError as error:
            return [self.broken(body, str(error))]

    def _delivery(self, event: CloudEvent) -> Delivery:
        new = to_message(event, group=self._group)
        return Delivery(
            source=event.source,
            topic=event.type,
            id=event.id,
            payload=new.payload,
            headers=new.headers,
            group=new.group,
            received_at=new.received_at,
            hash=new.hash,
        )
