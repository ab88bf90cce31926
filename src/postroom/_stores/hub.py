"""Hubs: processes send each other the identifiers of stores into which they have put messages.

A hub is a database that the user names. All processes of a room use the same. A probe finds a put after a second or
more; a hub passes it on at once. What it passes on are hints, too: if the hub fails, they are lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from postroom._kernel.cancellation import cancel_once, is_cancelled
from postroom._stores.probe import Probe, ProbeTask

_log = logging.getLogger("postroom")

COALESCE_SECONDS = 0.02
"""Seconds in which a process sends the identifier of a store at most once."""
PAUSE_SECONDS = 1.0
"""Seconds without sending after an error, and the longest time that `close` waits for what is still to be sent."""


class Hub(Probe, Protocol):
    """Passes on hints between processes. `wait` returns the stores that other processes have published.

    It returns all stores after it has connected, since what was published before is lost.
    """

    def publish(self, store: str) -> None:
        """Sends the identifier of a store soon. Called after the commit of a put, in the event loop of the hub.

        Does not wait and does not raise. After `close` it does nothing.
        """


class Channel(Protocol):
    """The channel of a hub. A client library makes it."""

    async def send(self, texts: list[str]) -> None:
        """Sends texts to all who listen."""

    async def receive(self) -> Collection[str]:
        """Waits for texts. May return none, such as after it has connected. Connects again after an error."""

    async def close(self) -> None:
        """Closes all connections."""


class ChannelHub:
    """A hub on a channel of a database."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sender = secrets.token_hex(8)
        """In front of each identifier: a process drops what it has sent itself."""
        self._stores: frozenset[str] = frozenset()
        self._pending: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._has_failed = False
        self._is_closed = False
        self._task = ProbeTask()

    def set_stores(
        self,
        urls: Mapping[str, str],
        *,
        prefixes: Mapping[str, str] | None = None,
        boxes: Collection[str] = (),
    ) -> None:
        """Sets the stores that `wait` returns: see `Probe`."""
        self._stores = frozenset(urls)

    async def wait(self) -> frozenset[str]:
        """Waits until other processes have put messages: see `Probe`."""
        return await self._task.run(self._wait())

    async def _wait(self) -> frozenset[str]:
        while not is_cancelled():
            texts = await self._channel.receive()
            if not texts:
                return self._stores  # it has connected: what was sent before is lost
            if stores := self._stores & self._sent_by_others(texts):
                return stores
        raise asyncio.CancelledError

    def _sent_by_others(self, texts: Iterable[str]) -> set[str]:
        parts = [text.partition(" ") for text in texts]
        return {store for sender, _, store in parts if sender != self._sender}

    def refresh(self, store: str) -> bool:
        """Returns False: a hub knows no state of a store."""
        return False

    def publish(self, store: str) -> None:
        """Sends the identifier of a store soon: see `Hub`."""
        if self._is_closed:
            return
        self._pending.add(store)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Sends at once, and what is published meanwhile after a pause."""
        while self._pending and not is_cancelled():
            pending, self._pending = self._pending, set()
            try:
                await self._channel.send([f"{self._sender} {store}" for store in sorted(pending)])
                self._has_failed = False
            except Exception as error:  # noqa: BLE001 - a put does not fail because of a hint
                if not self._has_failed:
                    _log.info("the hub fails, so other processes learn later of messages: %s", type(error).__name__)
                self._has_failed = True
            await asyncio.sleep(PAUSE_SECONDS if self._has_failed else COALESCE_SECONDS)

    async def close(self) -> None:
        """Sends what is still to be sent, ends a pending `wait`, and closes the connections."""
        self._is_closed = True
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending], timeout=PAUSE_SECONDS)
            cancel_once(self._sending)
            await asyncio.wait([self._sending])
        await self._task.close()
        await self._channel.close()
