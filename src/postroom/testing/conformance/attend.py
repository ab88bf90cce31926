"""What is due, and the soft lease, for stores that are an `Attendant`."""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import UUID, uuid4

import pytest

from postroom._kernel.joins import WAIT_TOPIC
from postroom.spi import Attendance, Attendant, Box, Draft, JoinDraft, JoinStore, JoinWait, Key, Store
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    SOURCE,
    BoxUnderTest,
    Elapse,
    Now,
    OpenBox,
    Suite,
    claim_of,
    draft,
    names,
    needs,
    seconds,
)

TERM = 20.0


class Due(Protocol):
    """Returns the seconds until a message of a box may be claimable, or None."""

    async def __call__(self, box: BoxUnderTest) -> float | None: ...


class AttendConformance(Suite):
    """`attend`."""

    @pytest.fixture
    def attendant(self, store: Store) -> Attendant:
        if not isinstance(store, Attendant):
            pytest.skip("this store has no `attend`: a room with many stores cannot have it")
        return store

    @pytest.fixture
    def due(self, attendant: Attendant) -> Due:
        async def due(box: BoxUnderTest) -> float | None:
            found = (await attendant.attend([box.box.key], ALICE, seconds(TERM))).due
            assert found.keys() <= {box.box.key}
            return found.get(box.box.key)

        return due

    # -- what is due -----------------------------------------------------------------------------------------------

    async def test_nothing_is_due_in_an_empty_box(self, due: Due, open_box: OpenBox) -> None:
        assert await due(open_box()) is None

    async def test_a_message_is_due_since_it_was_put(self, due: Due, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        assert await due(box) == pytest.approx(0, abs=0.5)
        await elapse(7)
        await box.put(draft("2"))
        assert await due(box) == pytest.approx(-7, abs=0.5)

    async def test_a_message_with_a_due_time_is_due_then(self, due: Due, open_box: OpenBox, now: Now) -> None:
        box = open_box()
        moment = await now()
        await box.put(draft("late", due=moment + seconds(90)), draft("early", due=moment + seconds(40)))
        assert await due(box) == pytest.approx(40, abs=0.5)

    async def test_a_retry_is_due_after_its_delay(self, due: Due, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.retry(await box.take(), delay=seconds(12))
        assert await due(box) == pytest.approx(12, abs=0.5)

    @pytest.mark.parametrize("fifo", [False, True], ids=["none", "fifo"])
    async def test_a_claimed_message_is_due_at_the_end_of_its_lease(
        self, due: Due, open_box: OpenBox, elapse: Elapse, *, fifo: bool
    ) -> None:
        box = open_box(fifo=fifo)
        await box.put(draft("1", group="g" if fifo else None))
        message = await box.take(lease=30)
        assert await due(box) == pytest.approx(30, abs=0.5)
        await box.store.renew(box.box, [claim_of(message)], seconds(50))
        assert await due(box) == pytest.approx(50, abs=0.5)
        await elapse(60)
        assert await due(box) == pytest.approx(-10, abs=0.5)

    async def test_a_lease_that_ends_before_the_next_due_time_comes_first(
        self, due: Due, open_box: OpenBox, now: Now
    ) -> None:
        box = open_box()
        await box.put(draft("claimed"), draft("later", due=await now() + seconds(LEASE + 10)))
        await box.take()
        assert await due(box) == pytest.approx(LEASE, abs=0.5)

    async def test_a_due_time_before_the_end_of_a_lease_comes_first(
        self, due: Due, open_box: OpenBox, now: Now
    ) -> None:
        box = open_box()
        await box.put(draft("claimed"), draft("soon", due=await now() + seconds(LEASE - 10)))
        await box.take()
        assert await due(box) == pytest.approx(LEASE - 10, abs=0.5)

    async def test_a_message_that_waits_is_due_while_others_are_claimed(self, due: Due, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(*(draft(str(n)) for n in range(5)))
        await box.claim(4)
        assert await due(box) == pytest.approx(0, abs=0.5)

    async def test_done_dead_and_seen_messages_are_not_due(self, due: Due, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("done"))
        await box.bury(draft("dead"))
        await box.store.record(box.box, [Draft(SOURCE, "seen")])
        assert await due(box) is None

    async def test_what_is_behind_a_claimed_front_is_due_with_it(self, due: Due, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(str(n), group="g") for n in range(3)))
        assert names(await box.claim(1)) == ["0"]
        assert await due(box) == pytest.approx(LEASE, abs=0.5)

    async def test_the_next_member_is_due_when_the_front_is_done(self, due: Due, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(str(n), group="g") for n in range(3)))
        await box.ack(*await box.claim(1))
        due_in = await due(box)
        assert due_in is not None
        assert due_in <= 0.5

    async def test_what_is_behind_a_dead_front_is_not_due(self, due: Due, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(*(draft(str(n), group="g") for n in range(3)))
        await box.fail(*await box.claim(1))
        assert await box.claim() == []
        assert await due(box) is None

    async def test_a_cancelled_message_is_not_due(self, due: Due, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.store.mark(box.box, [Key(SOURCE, "1")], "processed")
        assert await due(box) is None

    async def test_a_continuation_is_due_when_its_join_has_ended(
        self, due: Due, open_box: OpenBox, store: Store
    ) -> None:
        needs(store.features.joins, "joins")
        assert isinstance(store, JoinStore)
        box, join = open_box("outbox"), uuid4()
        await store.start_join(box.box, JoinDraft(join, "tenant", expected_steps=1))
        await store.put(box.box, [draft("step", join=join)])
        await store.put_wait(box.box, draft(str(join), topic=WAIT_TOPIC), JoinWait(join))
        step = await box.take(lease=LEASE)
        assert await due(box) == pytest.approx(LEASE, abs=0.5)
        await box.ack(step)
        assert await due(box) == pytest.approx(0, abs=0.5)

    async def test_each_box_has_its_own_times(self, attendant: Attendant, open_box: OpenBox, now: Now) -> None:
        one, two, three = (open_box(name=name) for name in ("one", "two", "three"))
        await one.put(draft("1"))
        await two.put(draft("1", due=await now() + seconds(60)))
        await three.put(draft("1"))
        found = await attendant.attend([two.box.key, Box("outbox", "one").key, one.box.key], ALICE, seconds(TERM))
        assert {box: round(due) for box, due in found.due.items()} == {two.box.key: 60, one.box.key: 0}
        assert (await attendant.attend([], ALICE, seconds(TERM))).due == {}

    # -- the soft lease --------------------------------------------------------------------------------------------

    async def free_in(self, attendant: Attendant, process: UUID) -> float | None:
        return (await attendant.attend([], process, seconds(TERM))).free_in

    async def test_the_first_process_gets_the_soft_lease(self, attendant: Attendant, elapse: Elapse) -> None:
        assert await self.free_in(attendant, ALICE) is None
        assert await self.free_in(attendant, BOB) == pytest.approx(TERM, abs=0.5)
        await elapse(5)
        assert await self.free_in(attendant, ALICE) is None
        assert await self.free_in(attendant, BOB) == pytest.approx(TERM - 5, abs=0.5)

    async def test_a_soft_lease_is_not_extended(self, attendant: Attendant, elapse: Elapse) -> None:
        assert await self.free_in(attendant, ALICE) is None
        await elapse(TERM - 5)
        assert await self.free_in(attendant, ALICE) is None
        await elapse(6)
        assert await self.free_in(attendant, BOB) is None
        assert await self.free_in(attendant, ALICE) == pytest.approx(TERM, abs=0.5)

    async def test_a_process_may_take_its_soft_lease_again(self, attendant: Attendant, elapse: Elapse) -> None:
        assert await self.free_in(attendant, ALICE) is None
        await elapse(TERM + 1)
        assert await self.free_in(attendant, ALICE) is None
        assert await self.free_in(attendant, BOB) == pytest.approx(TERM, abs=0.5)

    async def test_a_soft_lease_of_zero_gives_it_back(self, attendant: Attendant) -> None:
        assert await self.free_in(attendant, ALICE) is None
        await attendant.attend([], BOB, seconds(0))  # it does not have the lease
        assert await self.free_in(attendant, BOB) == pytest.approx(TERM, abs=0.5)
        await attendant.attend([], ALICE, seconds(0))
        assert await self.free_in(attendant, BOB) is None
        assert await self.free_in(attendant, ALICE) == pytest.approx(TERM, abs=0.5)

    async def test_what_is_due_does_not_depend_on_the_soft_lease(self, attendant: Attendant, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        assert await self.free_in(attendant, ALICE) is None
        found: Attendance = await attendant.attend([box.box.key], BOB, seconds(TERM))
        assert found.free_in is not None
        assert found.due[box.box.key] == pytest.approx(0, abs=0.5)
        assert names(await box.claim(owner=BOB)) == ["1"]

    async def test_of_several_processes_one_gets_the_soft_lease(self, attendant: Attendant, elapse: Elapse) -> None:
        await self.free_in(attendant, ALICE)  # the schema is there
        await elapse(TERM + 1)
        processes = [UUID(int=number) for number in range(1, 9)]
        found = await asyncio.gather(*(self.free_in(attendant, process) for process in processes))
        assert found.count(None) == 1
        assert all(each == pytest.approx(TERM, abs=0.5) for each in found if each is not None)
