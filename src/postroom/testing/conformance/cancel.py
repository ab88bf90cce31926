"""The verb `cancel`."""

from __future__ import annotations

from typing import Any

from postroom.spi import Ending, Filter, Key, ReceiptStatus, Retention, State
from postroom.testing.conformance.base import (
    SOURCE,
    BoxKind,
    BoxUnderTest,
    Elapse,
    Now,
    OpenBox,
    Suite,
    draft,
    names,
    seconds,
)


async def cancel(box: BoxUnderTest, **fields: Any) -> list[str]:
    """Returns the message ids of the cancelled messages."""
    keys = await box.store.cancel(box.box, Filter(**fields))
    assert all(isinstance(key, Key) for key in keys)
    return [key.message_id for key in keys]


class CancelConformance(Suite):
    """`cancel`."""

    async def test_a_waiting_message_is_done_and_says_how(self, open_box: OpenBox, kind: BoxKind, now: Now) -> None:
        box = open_box(kind)
        await box.put(draft("1", payload="whole"))
        began = await now()
        assert await cancel(box, keys=(Key(SOURCE, "1"),)) == ["1"]
        message = await box.get("1")
        assert (message.state, message.ending) == (State.DONE, Ending.CANCELLED)
        assert (message.payload, message.completed_by, message.claim) == ("whole", None, None)
        assert message.completed_at is not None
        assert began <= message.completed_at <= await now()
        assert await box.claim() == []
        assert (await box.counts())[State.DONE] == 1

    async def test_a_message_that_is_not_due_yet(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await box.put(draft("1", due=await now() + seconds(60)), draft("2", due=await now() + seconds(60)))
        assert await cancel(box, keys=(Key(SOURCE, "1"),)) == ["1"]
        await elapse(60)
        assert names(await box.claim()) == ["2"]

    async def test_a_message_that_waits_for_a_retry(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.retry(await box.take(), delay=seconds(60), error="boom")
        assert await cancel(box, keys=(Key(SOURCE, "1"),)) == ["1"]
        message = await box.get("1")
        assert (message.ending, message.attempt, message.last_error) == (Ending.CANCELLED, 1, "boom")

    async def test_its_key_stays_known(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        await cancel(box, keys=(Key(SOURCE, "1"),))
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE
        assert await box.claim() == []

    async def test_what_does_not_wait_is_left_alone(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("done"))
        await box.bury(draft("dead"))
        await box.store.record(box.box, [draft("seen")])
        await box.put(draft("claimed"))
        claimed = await box.take()
        before = await box.find()
        assert await cancel(box) == []
        assert await cancel(box, keys=tuple(message.key for message in before)) == []
        assert await box.find() == before
        assert await box.ack(claimed) == [True]

    async def test_a_lease_that_has_passed_is_a_claim_until_it_is_freed(
        self, open_box: OpenBox, elapse: Elapse
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.claim(lease=30)
        await elapse(31)
        assert await cancel(box) == []
        await box.store.reap(box.box, 10)
        assert await cancel(box) == ["1"]

    async def test_by_id_by_key_or_by_both(self, open_box: OpenBox) -> None:
        box = open_box()
        receipts = await box.put(*(draft(name) for name in "1234"))
        assert await cancel(box, ids=(receipts[1].id, 999_999)) == ["2"]
        assert await cancel(box, ids=(receipts[3].id, receipts[0].id), keys=(Key(SOURCE, "1"),)) == ["1", "4"]
        assert names(await box.claim()) == ["3"]

    async def test_a_key_is_a_source_and_an_id(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", source="a"), draft("1", source="b"), draft("2", source="a"))
        assert await cancel(box, keys=(Key("b", "1"), Key("b", "2"))) == ["1"]
        assert sorted(message.key for message in await box.claim()) == [Key("a", "1"), Key("a", "2")]

    async def test_by_correlation_id_and_more(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(
            draft("1", correlation_id="c"),
            draft("2", correlation_id="d"),
            draft("3", correlation_id="c", topic="other"),
            draft("4", correlation_id="c"),
            draft("5", correlation_id="c", source="b"),
            draft("6", correlation_id="c", group="g"),
        )
        assert await cancel(box, correlation_id="c", topic="other") == ["3"]
        assert await cancel(box, correlation_id="c", source="b") == ["5"]
        assert await cancel(box, correlation_id="c", group="g") == ["6"]
        assert await cancel(box, correlation_id="c") == ["1", "4"]
        assert await cancel(box, correlation_id="c") == []
        assert names(await box.claim()) == ["2"]

    async def test_no_more_than_the_limit_in_id_order(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(*(draft(str(number), correlation_id="c") for number in range(5)))
        assert await cancel(box, correlation_id="c", limit=2) == ["0", "1"]
        assert await cancel(box, correlation_id="c", limit=2) == ["2", "3"]

    async def test_another_box_is_left_alone(self, open_box: OpenBox) -> None:
        one, other = open_box(name="one"), open_box(name="other")
        [receipt] = await other.put(draft("1", correlation_id="c"))
        assert await cancel(one, keys=(Key(SOURCE, "1"),)) == []
        assert await cancel(one, ids=(receipt.id,)) == []
        assert await cancel(one, correlation_id="c") == []
        assert names(await other.claim()) == ["1"]

    async def test_the_content_goes_where_it_goes_at_the_ack(self, open_box: OpenBox) -> None:
        box = open_box(retention=Retention(on_success="delete"))
        await box.put(draft("1", payload="secret", headers={"a": "1"}))
        await cancel(box)
        message = await box.get("1")
        assert (message.payload, message.headers, message.ending) == ("", {}, Ending.CANCELLED)

    async def test_a_collapse_key_is_free(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", collapse_key="k"))
        assert await cancel(box) == ["1"]
        assert (await box.put_one(draft("2", collapse_key="k"))).superseded == ()
        assert (await box.get("1")).ending is Ending.CANCELLED
        assert names(await box.claim()) == ["2"]

    async def test_it_does_not_expire_any_more(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await box.put(draft("1", expires=await now() + seconds(10)))
        await cancel(box)
        await elapse(20)
        assert (await box.store.reap(box.box, 10)).expired == 0
        assert await box.state("1") is State.DONE

    async def test_a_group_goes_on_without_its_first(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(name, group="g") for name in "123"))
        assert await cancel(box, keys=(Key(SOURCE, "1"),)) == ["1"]
        assert names(await box.claim()) == ["2", "3"]

    async def test_a_group_goes_on_where_its_first_waits_for_a_retry(self, open_box: OpenBox) -> None:
        """The members behind it have no time to be claimed: the store must promote the next one."""
        box = open_box(fifo=True)
        await box.put(*(draft(name, group="g") for name in "123"))
        [first] = await box.claim(1)
        await box.retry(first, delay=seconds(60))
        assert await box.claim() == []
        assert await cancel(box, keys=(Key(SOURCE, "1"),)) == ["1"]
        assert names(await box.claim()) == ["2", "3"]

    async def test_one_behind_the_first_of_a_group(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(name, group="g") for name in "1234"))
        [first] = await box.claim(1)
        assert await cancel(box, keys=(Key(SOURCE, "2"), Key(SOURCE, "3"))) == ["2", "3"]
        assert await box.ack(first) == [True]
        assert names(await box.claim()) == ["4"]

    async def test_a_claimed_first_keeps_its_group(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(name, group="g") for name in "123"))
        [first] = await box.claim(1)
        assert await cancel(box, group="g") == ["2", "3"]
        await box.put(draft("4", group="g"))
        assert await box.claim() == []
        await box.ack(first)
        assert names(await box.claim()) == ["4"]

    async def test_a_whole_group(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(name, group="g") for name in "123"), draft("other", group="h"))
        assert await cancel(box, group="g") == ["1", "2", "3"]
        assert names(await box.claim()) == ["other"]
        await box.put(draft("4", group="g"))
        assert names(await box.claim()) == ["4"]

    async def test_a_dead_letter_goes_on_blocking(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(*(draft(name, group="g") for name in "123"))
        [first] = await box.claim(1)
        await box.fail(first)
        assert await cancel(box, keys=(Key(SOURCE, "2"),)) == ["2"]
        assert await box.claim() == []
