"""Conflicts: a known key with another topic or content hash."""

from __future__ import annotations

import pytest

from postroom.spi import ReceiptStatus, State
from postroom.testing.conformance.base import Elapse, OpenBox, Suite, draft


class ConflictConformance(Suite):
    """`put` of a known key whose topic or hash differs."""

    async def test_update_replaces_content_and_hash(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", payload="old", hash=b"old"))
        receipt = await box.put_one(draft("1", payload="new", hash=b"new"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.CONFLICT, State.WAITING)
        message = await box.get("1")
        assert (message.payload, message.hash, message.revision) == ("new", b"new", 1)

    async def test_keep_keeps_content_and_hash(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1", payload="old", hash=b"old"))
        before = await box.get("1")
        await elapse(5)
        receipt = await box.put_one(draft("1", payload="new", hash=b"new", on_conflict="keep"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.CONFLICT, State.WAITING)
        message = await box.get("1")
        assert message._replace(last_seen=before.last_seen) == before
        assert message.last_seen > before.last_seen

    async def test_reject_changes_nothing(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1", payload="old", hash=b"old"))
        before = await box.get("1")
        await elapse(5)
        receipt = await box.put_one(draft("1", payload="new", hash=b"new", on_conflict="reject"))
        assert (receipt.status, receipt.id, receipt.state) == (ReceiptStatus.REJECTED, before.id, State.WAITING)
        assert await box.get("1") == before

    async def test_another_topic_is_other_content(self, open_box: OpenBox) -> None:
        """Two kinds of messages share an id by mistake. The second is a conflict, not a duplicate."""
        box = open_box()
        await box.put(draft("1", topic="placed"))
        kept = await box.put_one(draft("1", topic="paid", on_duplicate="reject"))
        assert (kept.status, kept.updated) == (ReceiptStatus.CONFLICT, False)
        assert (await box.get("1")).topic == "placed"
        rejected = await box.put_one(draft("1", topic="paid", on_conflict="reject"))
        assert rejected.status is ReceiptStatus.REJECTED
        replaced = await box.put_one(draft("1", topic="paid"))
        assert (replaced.status, replaced.updated) == (ReceiptStatus.CONFLICT, True)
        assert (await box.get("1")).topic == "paid"

    async def test_a_key_without_a_message_has_no_topic(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.store.record(box.box, [draft("seen", topic="")])
        await box.store.mark(box.box, [draft("marked").key], "processed")
        assert (await box.put_one(draft("seen", topic="placed"))).status is ReceiptStatus.NEW
        assert (await box.put_one(draft("marked", topic="placed"))).status is ReceiptStatus.DONE

    async def test_hashes_of_different_algorithms_are_not_compared(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", hash=b"old", hash_algorithm="md5"))
        receipt = await box.put_one(draft("1", hash=b"new", hash_algorithm="sha256", on_conflict="reject"))
        assert receipt.status is ReceiptStatus.DUPLICATE

    @pytest.mark.parametrize(("known", "given"), [(None, b"h"), (b"h", None), (b"h", b"h"), (None, None)])
    async def test_equal_or_missing_hashes_do_not_conflict(
        self, open_box: OpenBox, known: bytes | None, given: bytes | None
    ) -> None:
        box = open_box()
        await box.put(draft("1", hash=known))
        receipt = await box.put_one(draft("1", hash=given, on_conflict="reject"))
        assert receipt.status is ReceiptStatus.DUPLICATE

    async def test_a_done_message_keeps_its_hash(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("1", payload="old", hash=b"old"))
        receipt = await box.put_one(draft("1", payload="new", hash=b"new"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.CONFLICT, State.DONE)
        message = await box.get("1")
        assert (message.payload, message.hash) == ("old", b"old")

    async def test_a_conflict_with_a_dead_message_leaves_it_dead(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.bury(draft("1", payload="old", hash=b"old"))
        receipt = await box.put_one(draft("1", payload="new", hash=b"new"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.CONFLICT, State.DEAD)
        assert (await box.get("1")).payload == "new"

    async def test_keep_does_not_change_what_a_worker_handles(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", payload="old", hash=b"old"))
        await box.take()
        receipt = await box.put_one(draft("1", payload="new", hash=b"new", on_conflict="keep"))
        assert (receipt.status, receipt.replaced_under_lease) == (ReceiptStatus.CONFLICT, False)
        assert (await box.get("1")).payload == "old"
