"""Known keys: what `on_duplicate` does with the content of a duplicate."""

from __future__ import annotations

import pytest

from postroom.spi import ReceiptStatus, Retention, State
from postroom.testing.conformance.base import BoxKind, BoxUnderTest, Elapse, Now, OpenBox, Suite, draft, names, seconds

REJECTING = ("reject", "raise")
"""A store treats both in the same way: the box raises after the call."""


async def rejected_put(box: BoxUnderTest, policy: str, **options: object) -> ReceiptStatus:
    """Puts message 1 again with other content. Checks that only `last_seen` changes; returns the status."""
    before = await box.get("1")
    receipt = await box.put_one(draft("1", payload="new", on_duplicate=policy, **options))
    assert (receipt.id, receipt.state, receipt.updated) == (before.id, before.state, False)
    assert not receipt.replaced_under_lease
    after = await box.get("1")
    assert after._replace(last_seen=before.last_seen) == before
    return receipt.status


class DuplicateConformance(Suite):
    """`put` of a known key, for each `on_duplicate`."""

    @pytest.mark.parametrize("policy", REJECTING)
    async def test_reject_keeps_the_content_of_a_waiting_message(
        self, open_box: OpenBox, kind: BoxKind, policy: str, elapse: Elapse
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1", payload="old"))
        first = await box.get("1")
        await elapse(5)
        assert await rejected_put(box, policy, headers={"a": "1"}, correlation_id="c") is ReceiptStatus.DUPLICATE
        assert (await box.get("1")).last_seen == first.last_seen + seconds(5)
        assert (await box.take()).payload == "old"

    @pytest.mark.parametrize("policy", REJECTING)
    async def test_reject_keeps_what_a_worker_handles(self, open_box: OpenBox, policy: str) -> None:
        box = open_box()
        await box.put(draft("1", payload="old"))
        claimed = await box.take()
        assert await rejected_put(box, policy) is ReceiptStatus.DUPLICATE
        assert await box.ack(claimed) == [True]
        assert await box.state("1") is State.DONE

    async def test_reject_keeps_the_due_time(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await box.put(draft("1", due=await now() + seconds(60)))
        assert await rejected_put(box, "reject") is ReceiptStatus.DUPLICATE
        assert await box.claim() == []
        await elapse(60)
        assert names(await box.claim()) == ["1"]

    async def test_reject_keeps_the_content_of_a_dead_message(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.bury(draft("1", payload="old"))
        assert await rejected_put(box, "reject") is ReceiptStatus.DEAD

    async def test_revive_dead_revives_and_reject_keeps_the_content(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.bury(draft("1", payload="old"))
        receipt = await box.put_one(draft("1", payload="new", on_duplicate="reject", revive_dead=True))
        assert (receipt.status, receipt.state, receipt.updated) == (ReceiptStatus.REVIVED, State.WAITING, False)
        assert (await box.take()).payload == "old"

    async def test_a_done_message_is_done_under_any_policy(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("1", payload="old"))
        for policy in ("update", *REJECTING):
            assert await rejected_put(box, policy) is ReceiptStatus.DONE

    async def test_a_duplicate_is_rejected_inside_the_window(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=Retention(dedup_window=seconds(100)))
        await box.put(draft("1", payload="old", on_duplicate="reject"))
        await elapse(99)
        assert await rejected_put(box, "reject") is ReceiptStatus.DUPLICATE
        await elapse(1)
        receipt = await box.put_one(draft("1", payload="new", on_duplicate="reject"))
        assert (receipt.status, receipt.updated) == (ReceiptStatus.NEW, False)

    async def test_reject_keeps_the_content_where_hashes_differ(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", payload="old", hash=b"old"))
        assert await rejected_put(box, "reject", hash=b"new") is ReceiptStatus.CONFLICT
        assert await rejected_put(box, "reject", hash=b"new", on_conflict="keep") is ReceiptStatus.CONFLICT

    async def test_a_key_that_was_only_seen_is_no_duplicate(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.store.record(box.box, [draft("1", hash=b"seen")])
        receipt = await box.put_one(draft("1", payload="new", on_duplicate="reject"))
        assert (receipt.status, receipt.updated) == (ReceiptStatus.NEW, False)
        assert (await box.take()).payload == "new"

    async def test_each_draft_of_a_call_has_its_own_policy(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", payload="old"), draft("2", payload="old"))
        receipts = await box.put(
            draft("1", payload="new", on_duplicate="reject"),
            draft("2", payload="new"),
            draft("3", payload="new", on_duplicate="reject"),
            draft("3", payload="newer", on_duplicate="reject"),
        )
        assert [(receipt.status.value, receipt.updated) for receipt in receipts] == [
            ("duplicate", False),
            ("duplicate", True),
            ("new", False),
            ("duplicate", False),
        ]
        assert [message.payload for message in await box.find()] == ["old", "new", "new"]

    async def test_a_receipt_says_whether_the_content_was_replaced(self, open_box: OpenBox) -> None:
        box = open_box()
        assert not (await box.put_one(draft("1", hash=b"1"))).updated
        assert (await box.put_one(draft("1"))).updated
        await box.put(draft("1", hash=b"1"))
        assert (await box.put_one(draft("1", hash=b"2"))).updated
        assert not (await box.put_one(draft("1", hash=b"3", on_conflict="keep"))).updated
        assert not (await box.put_one(draft("1", hash=b"3", on_conflict="reject"))).updated
        await box.fail(await box.take())
        assert (await box.put_one(draft("1"))).updated
        assert (await box.put_one(draft("1", revive_dead=True))).updated
        await box.ack(await box.take())
        assert not (await box.put_one(draft("1"))).updated
