"""Collapse keys: a new message replaces waiting ones."""

from __future__ import annotations

from typing import Any

from postroom.spi import Draft, Ending, ReceiptStatus, State
from postroom.testing.conformance.base import BoxKind, Elapse, Now, OpenBox, Suite, draft, names, seconds


def price(message_id: str, collapse_key: str = "price", **fields: Any) -> Draft:
    return draft(message_id, collapse_key=collapse_key, **fields)


class CollapseConformance(Suite):
    """Stores with `features.collapse`."""

    async def test_a_newer_message_supersedes_those_that_wait(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now
    ) -> None:
        box = open_box(kind)
        first = await box.put_one(price("1", payload="kept"))
        await elapse(5)
        began = await now()
        second = await box.put_one(price("2"))
        assert (second.status, second.superseded) == (ReceiptStatus.NEW, (first.id,))
        message = await box.get("1")
        assert (message.state, message.ending, message.completed_by) == (State.DONE, Ending.SUPERSEDED, None)
        assert message.completed_at is not None
        assert began <= message.completed_at <= await now()
        assert message.payload == "kept"
        assert names(await box.claim()) == ["2"]

    async def test_a_claimed_message_is_never_touched(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(price("1"))
        claimed = await box.take()
        assert (await box.put_one(price("2"))).superseded == ()
        assert await box.get("1") == claimed
        assert await box.ack(claimed) == [True]
        assert (await box.get("1")).ending is Ending.HANDLED

    async def test_who_waits_again_can_be_superseded(self, open_box: OpenBox, now: Now) -> None:
        box = open_box()
        await box.put(price("retrying"))
        retrying = await box.take()
        later = await box.put_one(price("later", due=await now() + seconds(60)))
        await box.retry(retrying, delay=seconds(60))
        newest = await box.put_one(price("newest"))
        assert newest.superseded == (retrying.id, later.id)
        assert names(await box.claim()) == ["newest"]

    async def test_a_duplicate_collapses_nothing(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(price("1"), draft("2"))
        receipt = await box.put_one(price("2"))
        assert (receipt.status, receipt.superseded) == (ReceiptStatus.DUPLICATE, ())
        assert names(await box.claim()) == ["1", "2"]

    async def test_a_duplicate_of_the_superseded_is_done(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(price("1"))
        await box.put(price("2"))
        receipt = await box.put_one(price("1"))
        assert (receipt.status, receipt.superseded) == (ReceiptStatus.DONE, ())
        assert names(await box.claim()) == ["2"]

    async def test_within_one_call_the_last_wins(self, open_box: OpenBox) -> None:
        box = open_box()
        receipts = await box.put(price("1"), price("2"), draft("plain"), price("3"))
        assert [receipt.superseded for receipt in receipts] == [(), (receipts[0].id,), (), (receipts[1].id,)]
        assert sorted(names(await box.claim())) == ["3", "plain"]

    async def test_other_keys_and_boxes_are_left_alone(self, open_box: OpenBox) -> None:
        box, elsewhere = open_box(), open_box(name="elsewhere")
        await elsewhere.put(price("0"))
        await box.put(price("1", "a"), price("2", "A"), draft("3"))
        assert (await box.put_one(price("4", "b"))).superseded == ()
        assert len(await box.claim()) == 4
        assert names(await elsewhere.claim()) == ["0"]

    async def test_the_finished_are_left_alone(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(price("done"))
        await box.bury(price("dead"))
        before = await box.find()
        assert (await box.put_one(price("new"))).superseded == ()
        assert (await box.find())[:2] == before

    async def test_what_was_only_seen_collapses_when_it_is_put(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.store.record(box.box, [Draft(draft("1").source, "1")])
        older = await box.put_one(price("2"))
        assert (await box.put_one(price("1"))).superseded == (older.id,)
        assert names(await box.claim()) == ["1"]
