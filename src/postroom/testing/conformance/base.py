"""The fixtures of the suite, and helpers that its tests share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Protocol
from uuid import UUID

import pytest

from postroom.spi import (
    Box,
    Claim,
    ClaimRequest,
    Counts,
    Delivery,
    Draft,
    Filter,
    Order,
    Receipt,
    Retention,
    Settled,
    Settlement,
    State,
    Store,
    StoredMessage,
    Transactor,
    Tx,
)
from postroom.testing.clock import FrozenClock

BoxKind = Literal["inbox", "outbox", "guard"]
Elapse = Callable[[float], Awaitable[None]]
"""Moves the store's clock by so many seconds."""
Now = Callable[[], Awaitable[datetime]]
"""Returns the time of the store's clock."""

Transaction = Callable[[], AbstractAsyncContextManager[Tx]]
"""Begins a transaction to pass as `tx`. It commits at the end of the block, and rolls back on an error."""
Reopen = Callable[[], Store]
"""Opens another store on the data of the store under test."""

SOURCE = "shop"
ALICE, BOB = UUID(int=0xA11CE), UUID(int=0xB0B)
LEASE = 30.0


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def draft(message_id: str, **fields: Any) -> Draft:
    """Returns a draft. Fields that a test does not name have a default."""
    return Draft(**{"source": SOURCE, "message_id": message_id, "topic": "order", "payload": "payload"} | fields)


def claim_of(message: StoredMessage) -> Claim:
    """Returns the claim of a claimed message."""
    assert message.claim is not None, "the store returned a claimed message without its claim"
    return message.claim


def names(messages: list[StoredMessage]) -> list[str]:
    """Returns the message ids, in order."""
    return [message.message_id for message in messages]


def needs(offered: bool, feature: str) -> None:
    """Skips the test if the store does not offer a feature."""
    if not offered:
        pytest.skip(f"this store does not offer {feature}: its features.{feature} is False")


class BoxUnderTest:
    """A box of the store under test, with short calls of its verbs."""

    def __init__(self, store: Store, box: Box) -> None:
        self.store = store
        self.box = box

    async def put(self, *drafts: Draft) -> list[Receipt]:
        if any(item.collapse_key is not None for item in drafts):
            needs(self.store.features.collapse, "collapse")
        return await self.store.put(self.box, drafts)

    async def put_one(self, item: Draft) -> Receipt:
        [receipt] = await self.put(item)
        return receipt

    async def claim(
        self, limit: int = 10, *, owner: UUID = ALICE, lease: float = LEASE, topics: set[str] | None = None
    ) -> list[StoredMessage]:
        request = ClaimRequest(owner, seconds(lease), limit, None if topics is None else frozenset(topics))
        return await self.store.claim(self.box, request)

    async def take(self, *, owner: UUID = ALICE, lease: float = LEASE) -> StoredMessage:
        """Claims the only message that can be claimed now."""
        claimed = await self.claim(owner=owner, lease=lease)
        assert len(claimed) == 1, f"one message should be claimable, not {names(claimed)}"
        return claimed[0]

    async def settle(self, *settlements: Settlement) -> list[bool]:
        settled: Settled = await self.store.settle(self.box, settlements)
        return list(settled)

    async def ack(self, *messages: StoredMessage) -> list[bool]:
        return await self.settle(*(Settlement.done(claim_of(message)) for message in messages))

    async def retry(
        self, message: StoredMessage, *, delay: timedelta | None = None, error: str | None = None
    ) -> list[bool]:
        return await self.settle(Settlement.retry(claim_of(message), delay=delay, error=error))

    async def release(self, *messages: StoredMessage, delay: timedelta | None = None) -> list[bool]:
        return await self.settle(*(Settlement.release(claim_of(message), delay=delay) for message in messages))

    async def fail(self, *messages: StoredMessage, error: str = "given up") -> list[bool]:
        return await self.settle(*(Settlement.dead(claim_of(message), error=error) for message in messages))

    async def bury(self, *drafts: Draft) -> list[StoredMessage]:
        """Puts messages and fails them. Returns them as they were claimed."""
        await self.put(*drafts)
        wanted = {item.key for item in drafts}
        claimed = [message for message in await self.claim(len(drafts)) if message.key in wanted]
        assert len(claimed) == len(drafts)
        await self.fail(*claimed)
        return claimed

    async def finish(self, *drafts: Draft) -> list[StoredMessage]:
        """Puts messages and acks them. Returns them as they were claimed."""
        await self.put(*drafts)
        claimed = await self.claim(len(drafts))
        assert len(claimed) == len(drafts)
        assert all(await self.ack(*claimed))
        return claimed

    async def find(self, **fields: Any) -> list[StoredMessage]:
        return await self.store.find(self.box, Filter(**fields))

    async def get(self, message_id: str, source: str = SOURCE) -> StoredMessage:
        """Returns the newest message with this key."""
        found = await self.find(message_id=message_id, source=source)
        assert found, f"{message_id} is not there"
        return found[-1]

    async def state(self, message_id: str) -> State:
        return (await self.get(message_id)).state

    async def counts(self) -> Counts:
        return await self.store.counts(self.box)


class OpenBox(Protocol):
    """Opens a box on the store under test."""

    def __call__(
        self,
        kind: BoxKind = "inbox",
        name: str = "box",
        *,
        fifo: bool = False,
        on_dead: Literal["unblock", "block"] = "unblock",
        delivery: Delivery | None = None,
        retention: Retention | None = None,
    ) -> BoxUnderTest: ...


class Suite:
    """The fixtures of the suite. The class that runs it has one more, `store`."""

    pytestmark: ClassVar[list[pytest.MarkDecorator]] = [pytest.mark.asyncio]

    @pytest.fixture
    def clock(self) -> FrozenClock:
        """The clock for the store. The suite moves it."""
        return FrozenClock()

    @pytest.fixture
    def elapse(self, clock: FrozenClock) -> Elapse:
        """Override this and `now` for a store that uses the clock of its server."""

        async def elapse(by: float) -> None:
            clock.advance(by)

        return elapse

    @pytest.fixture
    def now(self, clock: FrozenClock) -> Now:
        async def now() -> datetime:
            return clock.now()

        return now

    @pytest.fixture
    def transaction(self, store: Store) -> Transaction | None:
        """Override this for a transactional store that is not a `Transactor`."""
        return store.transaction if isinstance(store, Transactor) else None

    @pytest.fixture
    def reopen(self) -> Reopen | None:
        """Override this for a durable store."""
        return None

    @pytest.fixture(params=["inbox", "outbox"])
    def kind(self, request: pytest.FixtureRequest) -> BoxKind:
        """For tests of both an inbox and an outbox."""
        kind: BoxKind = request.param
        return kind

    @pytest.fixture
    def open_box(self, store: Store) -> OpenBox:
        def open_box(
            kind: BoxKind = "inbox",
            name: str = "box",
            *,
            fifo: bool = False,
            on_dead: Literal["unblock", "block"] = "unblock",
            delivery: Delivery | None = None,
            retention: Retention | None = None,
        ) -> BoxUnderTest:
            if fifo:
                needs(store.features.fifo, "fifo")
            order = Order(fifo=fifo, on_dead=on_dead)
            return BoxUnderTest(store, Box(kind, name, order, delivery or Delivery(), retention or Retention()))

        return open_box
