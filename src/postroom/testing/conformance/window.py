"""The deduplication window."""

from __future__ import annotations

from postroom.spi import Key, ReceiptStatus, Retention, State
from postroom.testing.conformance.base import SOURCE, Elapse, OpenBox, Suite, draft, seconds

WINDOW = Retention(dedup_window=seconds(100))


class WindowConformance(Suite):
    """`dedup_window`: it begins when the key is first seen, and is checked when the key comes again."""

    async def test_without_a_window_a_key_is_known_for_ever(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.finish(draft("1"))
        await elapse(400 * 24 * 3600)
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE

    async def test_inside_the_window_a_key_is_known(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        await box.finish(draft("1"))
        await elapse(99)
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE

    async def test_after_the_window_a_key_is_new(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        [first] = await box.finish(draft("1", payload="first"))
        await elapse(100)
        receipt = await box.put_one(draft("1", payload="second"))
        assert receipt.status is ReceiptStatus.NEW
        assert receipt.id > first.id
        assert [message.payload for message in await box.find(message_id="1")] == ["first", "second"]

    async def test_duplicates_do_not_stretch_the_window(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        await box.put(draft("1"))
        await elapse(60)
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DUPLICATE
        await elapse(60)
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.NEW

    async def test_the_newest_holder_of_a_key_has_a_window_of_its_own(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        await box.put(draft("1"))
        await elapse(150)
        second = await box.put_one(draft("1"))
        await elapse(60)
        again = await box.put_one(draft("1"))
        assert (again.status, again.id) == (ReceiptStatus.DUPLICATE, second.id)

    async def test_a_message_that_lost_its_key_is_still_handled(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        await box.put(draft("1", payload="first"))
        await elapse(100)
        await box.put(draft("1", payload="second"))
        claimed = await box.claim()
        assert [message.payload for message in claimed] == ["first", "second"]
        assert await box.ack(*claimed) == [True, True]

    async def test_two_lives_of_a_key_in_one_call(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        await box.put(draft("1"))
        await elapse(100)
        receipts = await box.put(draft("1"), draft("2"), draft("1"))
        assert [receipt.status.value for receipt in receipts] == ["new", "new", "duplicate"]
        assert receipts[0].id == receipts[2].id

    async def test_a_check_after_the_window_sees_a_new_key(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        await box.finish(draft("1"))
        await elapse(100)
        [status] = await box.store.record(box.box, [draft("1")])
        assert (status.is_new, status.state) == (True, State.SEEN)

    async def test_a_mark_after_the_window_means_a_new_key(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=WINDOW)
        await box.put(draft("1"))
        await elapse(100)
        assert list(await box.store.mark(box.box, [Key(SOURCE, "1")], "dead")) == [False]
        assert list(await box.store.mark(box.box, [Key(SOURCE, "1")], "processed")) == [True]
        assert [message.state for message in await box.find(message_id="1")] == [State.WAITING, State.DONE]
