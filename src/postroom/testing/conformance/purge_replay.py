"""The verbs `replay` and `purge`."""

from __future__ import annotations

from typing import Any

from postroom.spi import Delivery, Draft, Filter, Key, Purge, ReceiptStatus, Retention, State
from postroom.testing.conformance.base import (
    LEASE,
    SOURCE,
    BoxKind,
    BoxUnderTest,
    Elapse,
    Now,
    OpenBox,
    Suite,
    claim_of,
    draft,
    names,
    seconds,
)


async def replay(box: BoxUnderTest, **fields: Any) -> list[str]:
    keys = await box.store.replay(box.box, Filter(**fields))
    assert all(isinstance(key, Key) for key in keys)
    return [key.message_id for key in keys]


async def purge(box: BoxUnderTest, state: State, older_than: float, limit: int = 1000) -> int:
    return await box.store.purge(box.box, Purge(state, seconds(older_than), limit))


class ReplayConformance(Suite):
    """`replay`."""

    async def test_the_dead_wait_again(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        await box.bury(draft("1", payload="whole"))
        assert await replay(box) == ["1"]
        message = await box.get("1")
        assert (message.state, message.completed_at, message.claim) == (State.WAITING, None, None)
        assert (await box.take()).payload == "whole"

    async def test_budgets_are_new(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(delivery=Delivery(max_deliveries=2))
        await box.put(draft("1"))
        await box.retry(await box.take(), error="boom")
        await elapse(60)
        await box.fail(await box.take())
        assert (await box.get("1")).deliveries == 2
        await replay(box)
        message = await box.get("1")
        assert (message.attempt, message.deliveries) == (0, 0)
        await box.release(await box.take())
        assert (await box.take()).deliveries == 2

    async def test_a_claim_from_a_former_life_proves_nothing(self, open_box: OpenBox) -> None:
        box = open_box()
        [old] = await box.bury(draft("1"))
        await replay(box)
        new = await box.take()
        assert claim_of(new).fence > claim_of(old).fence
        assert await box.ack(old) == [False]
        assert await box.get("1") == new

    async def test_a_due_time_ahead_does_not_matter_any_more(self, open_box: OpenBox, now: Now) -> None:
        box = open_box()
        await box.put(draft("1", due=await now() + seconds(1000)))
        await box.store.mark(box.box, [Key(SOURCE, "1")], "dead")
        await replay(box)
        assert names(await box.claim()) == ["1"]

    async def test_only_the_dead(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("done"))
        await box.bury(draft("dead"))
        await box.put(draft("claimed"))
        await box.take()
        await box.put(draft("waiting"))
        await box.store.record(box.box, [Draft(SOURCE, "seen")])
        assert await replay(box) == ["dead"]
        assert await replay(box) == []
        assert dict(await box.counts()) == {
            State.SEEN: 1,
            State.WAITING: 2,
            State.CLAIMED: 1,
            State.DONE: 1,
            State.DEAD: 0,
        }

    async def test_only_those_that_fit(self, open_box: OpenBox) -> None:
        box = open_box()
        dead = await box.bury(
            draft("1", topic="a"),
            draft("2", source="other"),
            draft("3", group="g"),
            draft("4", correlation_id="c"),
            draft("5"),
            draft("6"),
            draft("7"),
        )
        assert await replay(box, topic="a") == ["1"]
        assert await replay(box, source="other") == ["2"]
        assert await replay(box, group="g") == ["3"]
        assert await replay(box, correlation_id="c") == ["4"]
        assert await replay(box, message_id="5") == ["5"]
        assert await replay(box, ids=(dead[6].id, dead[0].id)) == ["7"]
        assert await replay(box, topic="none") == []
        assert await replay(box) == ["6"]

    async def test_at_most_as_many_as_asked_oldest_first(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.bury(*(draft(str(n)) for n in range(5)))
        assert await replay(box, limit=2) == ["0", "1"]
        assert await replay(box, limit=2) == ["2", "3"]
        assert await replay(box, limit=2) == ["4"]

    async def test_a_replayed_message_can_die_again(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.bury(draft("1"))
        await replay(box)
        await box.fail(await box.take(), error="again")
        message = await box.get("1")
        assert (message.state, message.last_error) == (State.DEAD, "again")
        assert await replay(box) == ["1"]


class PurgeConformance(Suite):
    """`purge`."""

    async def test_what_was_done_long_ago_is_deleted(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.finish(draft("old"))
        await elapse(60)
        await box.finish(draft("young"))
        await elapse(40)
        assert await purge(box, State.DONE, 100.001) == 0
        assert await purge(box, State.DONE, 100) == 1
        assert names(await box.find()) == ["young"]
        assert await purge(box, State.DONE, 0) == 1
        assert await box.find() == []

    async def test_what_is_not_done_is_never_deleted_with_the_done(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse
    ) -> None:
        box = open_box(kind)
        await box.store.record(box.box, [Draft(SOURCE, "seen")])
        await box.bury(draft("dead"))
        await box.put(draft("claimed"))
        await box.take(lease=1e8)
        await box.finish(draft("done"))
        await box.put(draft("waiting"))
        await elapse(1e7)
        assert await purge(box, State.DONE, 0) == 1
        assert names(await box.find()) == ["seen", "dead", "claimed", "waiting"]

    async def test_a_purge_is_one_batch(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        await box.finish(*(draft(str(n)) for n in range(5)))
        assert [await purge(box, State.DONE, 0, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_what_was_done_first_goes_first(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(*(draft(str(n)) for n in range(3)))
        for message in reversed(await box.claim()):
            await box.ack(message)
            await elapse(1)
        assert await purge(box, State.DONE, 0, limit=2) == 2
        assert names(await box.find()) == ["0"]

    async def test_the_dead_are_counted_from_their_death(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        await elapse(500)
        await box.fail(await box.take())
        await box.finish(draft("done"))
        await elapse(100)
        assert await purge(box, State.DEAD, 101) == 0
        assert await purge(box, State.DEAD, 100) == 1
        assert names(await box.find()) == ["done"]

    async def test_the_merely_seen_are_counted_from_the_last_sighting(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.store.record(box.box, [Draft(SOURCE, "old"), Draft(SOURCE, "again")])
        await elapse(60)
        await box.store.record(box.box, [Draft(SOURCE, "again")])
        await elapse(40)
        assert await purge(box, State.SEEN, 100) == 1
        assert names(await box.find()) == ["again"]

    async def test_a_message_that_still_comes_is_kept(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.finish(draft("1"))
        await elapse(100)
        await box.put(draft("1"))
        assert await purge(box, State.DONE, 50) == 0
        await elapse(50)
        assert await purge(box, State.DONE, 50) == 1

    async def test_retention_may_count_from_the_completion(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=Retention(age_from="completed_at"))
        await box.finish(draft("1"))
        await elapse(100)
        await box.put(draft("1"))
        assert await purge(box, State.DONE, 50) == 1

    async def test_a_purged_key_is_new(self, open_box: OpenBox) -> None:
        box = open_box()
        [old] = await box.finish(draft("1"))
        await purge(box, State.DONE, 0)
        receipt = await box.put_one(draft("1"))
        assert receipt.status is ReceiptStatus.NEW
        assert receipt.id > old.id

    async def test_a_purge_does_not_shorten_the_dedup_window(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=Retention(dedup_window=seconds(100)))
        await box.finish(draft("1"))
        await elapse(99)
        assert await purge(box, State.DONE, 0) == 0
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE
        await elapse(1)
        assert await purge(box, State.DONE, 0) == 1

    async def test_purging_an_earlier_life_of_a_key_leaves_the_present_one(
        self, open_box: OpenBox, elapse: Elapse
    ) -> None:
        box = open_box(retention=Retention(dedup_window=seconds(10)))
        await box.finish(draft("1", payload="first"))
        await elapse(10)
        await box.put(draft("1", payload="second"))
        assert await purge(box, State.DONE, 0) == 1
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DUPLICATE
        assert [message.payload for message in await box.find()] == ["payload"]

    async def test_a_purged_message_is_gone_for_its_claim(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        [claimed] = await box.bury(draft("1"))
        await purge(box, State.DEAD, 0)
        await elapse(LEASE)
        assert await box.ack(claimed) == [False]
        assert await replay(box) == []
