"""The hub of a room: sends the identifiers of stores into which this process has put messages, and receives others."""

from __future__ import annotations

import asyncio

from postroom._connect import open_hub
from postroom._kernel.local import PerLoop
from postroom._kernel.observer import Event
from postroom._stores.hub import Hub
from postroom.errors import ArgumentTypeError

COMMIT_SECONDS = (0.2, 1.0, 3.0, 10.0)
"""When a store is published again after a put in a transaction of the caller, whose commit is not observed."""


class Hubs:
    """A hub for each event loop of the room. It connects when it is first used."""

    def __init__(self, url: object) -> None:
        if not isinstance(url, str):
            raise ArgumentTypeError(f"hub must be a URL, not {type(url).__name__}")
        open_hub(url)  # raises if it cannot be one; it does not connect
        self._hubs: PerLoop[Hub] = PerLoop(lambda: open_hub(url))
        self._is_closed = False

    def get(self) -> Hub:
        """Returns the hub of this event loop."""
        return self._hubs.get()

    def publish(self, event: Event) -> None:
        """Sends the store of a verb that may have made a message claimable."""
        if self._is_closed or event.error is not None:
            return
        hub = self.get()
        hub.publish(event.store)
        if event.in_transaction:
            for seconds in COMMIT_SECONDS:
                asyncio.get_running_loop().call_later(seconds, hub.publish, event.store)

    async def close(self) -> None:
        """Sends what is still to be sent, and closes the hub of this event loop."""
        self._is_closed = True
        hub = self._hubs.pop()
        if hub is not None:
            await hub.close()
