"""Short calls of the verbs of joins, for the tests of joins."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from postroom._kernel.joins import WAIT_TOPIC, FollowUp
from postroom.spi import (
    Draft,
    Join,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinStep,
    JoinStore,
    JoinWait,
    Receipt,
    StepStatus,
    Store,
    StoredMessage,
)
from postroom.testing.conformance.base import SOURCE, BoxUnderTest, OpenBox, Suite, draft, needs

DONE = FollowUp("all.done", "yes", "text")
FAILED = FollowUp("some.failed", b"no", "bytes")


class JoinsUnderTest:
    """The joins of a box under test, with short calls of their verbs."""

    def __init__(self, box: BoxUnderTest) -> None:
        assert isinstance(box.store, JoinStore)
        self.of = box
        self.box = box.box
        self.store = box.store

    async def start(self, expected: int | None = 1, **fields: Any) -> UUID:
        id_ = uuid4()
        await self.store.start_join(self.box, JoinDraft(id_, "acme", expected, **fields))
        return id_

    async def put(self, join: UUID | None, *message_ids: str, **fields: Any) -> list[Receipt]:
        return await self.of.put(*(draft(id_, join=join, **fields) for id_ in message_ids))

    async def wait(
        self,
        join: UUID,
        *,
        fails: bool = True,
        on_complete: FollowUp | None = DONE,
        on_fail: FollowUp | None = FAILED,
        **options: Any,
    ) -> Receipt:
        wait = JoinWait(join, fails, on_complete, on_fail)
        continuation = Draft(SOURCE, str(join), WAIT_TOPIC, on_duplicate="reject")
        return await self.store.put_wait(self.box, continuation, wait, **options)

    async def get(self, join: UUID) -> Join:
        [found] = await self.store.find_joins(self.box, JoinFilter(ids=(join,)))
        return found

    async def counts(self, join: UUID) -> tuple[JoinStatus, int, int]:
        found = await self.get(join)
        return found.status, found.completed_steps, found.failed_steps

    async def steps(self, join: UUID) -> dict[str | None, StepStatus]:
        found = await self.store.find_steps(self.box, join)
        assert all(isinstance(step, JoinStep) for step in found)
        return {step.message_id: step.status for step in found}

    async def claim(self, *topics: str, limit: int = 100) -> dict[str, StoredMessage]:
        """Claims messages; returns them by message id."""
        claimed = await self.of.claim(limit, topics=set(topics) or None)
        return {message.message_id: message for message in claimed}

    async def run(self, *, failing: tuple[str, ...] = ()) -> list[str]:
        """Handles all that can be claimed. Returns the topics of continuations, in order."""
        sent: list[str] = []
        while claimed := await self.claim():
            for message in claimed.values():
                if message.topic in {DONE.topic, FAILED.topic}:
                    sent.append(message.topic)
                assert message.topic != WAIT_TOPIC
                await (self.of.fail(message) if message.message_id in failing else self.of.ack(message))
        return sent


class JoinSuite(Suite):
    """Tests of stores with `features.joins`."""

    @pytest.fixture
    def joins(self, store: Store, open_box: OpenBox) -> JoinsUnderTest:
        needs(store.features.joins, "joins")
        return JoinsUnderTest(open_box("outbox"))
