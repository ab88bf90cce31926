"""What the tests of guards share."""

from __future__ import annotations

from typing import Protocol, cast
from uuid import UUID

import pytest

from postroom.spi import (
    Begin,
    BeginStatus,
    Begun,
    Box,
    Claim,
    Draft,
    Filter,
    GuardStore,
    Settlement,
    Store,
    StoredMessage,
)
from postroom.testing.conformance.base import (
    ALICE,
    LEASE,
    OpenBox,
    Suite,
    needs,
    seconds,
)

HANDLER = "charge"
ACQUIRED, PROCESSED, BUSY = BeginStatus.ACQUIRED, BeginStatus.PROCESSED, BeginStatus.BUSY
CONFLICT, DEAD = BeginStatus.CONFLICT, BeginStatus.DEAD


def begin(
    key: str,
    owner: UUID = ALICE,
    *,
    lease: float | None = LEASE,
    source: str = HANDLER,
    digest: bytes | None = None,
    algorithm: str = "sha256",
) -> Begin:
    draft = Draft(source, key, "payment", hash=digest, hash_algorithm=algorithm)
    return Begin(draft, owner, None if lease is None else seconds(lease))


class GuardedStore(Store, GuardStore, Protocol):
    """A store with `features.guard`."""


class GuardUnderTest:
    """A guard of the store under test, with short calls of its verbs."""

    def __init__(self, store: Store, box: Box) -> None:
        self.store = cast("GuardedStore", store)
        self.box = box

    async def begin(self, *begins: Begin) -> list[Begun]:
        return await self.store.begin(self.box, begins)

    async def begin_one(self, key: str, owner: UUID = ALICE, **options: object) -> Begun:
        [begun] = await self.begin(begin(key, owner, **options))  # type: ignore[arg-type]
        return begun

    async def acquire(self, key: str, owner: UUID = ALICE, **options: object) -> Claim:
        begun = await self.begin_one(key, owner, **options)
        assert begun.status is ACQUIRED
        assert begun.claim is not None, "an acquired key has a claim"
        return begun.claim

    async def settle(self, *settlements: Settlement) -> list[bool]:
        return list(await self.store.settle(self.box, settlements))

    async def get(self, key: str) -> StoredMessage:
        found = await self.store.find(self.box, Filter(source=HANDLER, message_id=key))
        assert found, f"{key} has no record"
        return found[-1]


class GuardSuite(Suite):
    """The fixture of a guard, on stores with `features.guard`."""

    @pytest.fixture
    def guard(self, store: Store, open_box: OpenBox) -> GuardUnderTest:
        needs(store.features.guard, "guard")
        return GuardUnderTest(store, open_box("guard").box)
