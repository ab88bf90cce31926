"""The verb `put`: new messages, duplicates, and what a duplicate changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from postroom.spi import Format, ReceiptStatus, State
from postroom.testing.conformance.base import SOURCE, BoxKind, Elapse, Now, OpenBox, Suite, draft, names, seconds

# Emoji, a combining mark, right-to-left text, quotes, a line end and NUL: whatever a sender may send.
ODD_TEXT = "naïve Ω 漢字 🧾👩‍👩‍👧 e\u0301 שלום \"quoted\" 'n' \\ %s :name ? \n\t\x00 end"
ODD_NAME = ODD_TEXT.replace("\x00", "")
"""Without NUL: boxes refuse it in names and ids, because PostgreSQL cannot store it."""


class PutConformance(Suite):
    """`put`, without collapse keys and conflicts, which have their own classes."""

    async def test_a_new_message_waits(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        receipt = await box.put_one(draft("1"))
        assert (receipt.status, receipt.state, receipt.is_new) == (ReceiptStatus.NEW, State.WAITING, True)
        message = await box.get("1")
        assert (message.state, message.attempt, message.deliveries) == (State.WAITING, 0, 0)
        assert (message.claim, message.last_error, message.completed_at, message.ending) == (None, None, None, None)

    async def test_each_message_has_an_id_of_its_own(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        receipts = await box.put(*(draft(str(n)) for n in range(5)))
        receipts += await box.put(draft("later"))
        ids = [receipt.id for receipt in receipts]
        assert len(set(ids)) == 6
        assert ids == sorted(ids)
        assert [message.id for message in await box.find()] == ids

    async def test_a_receipt_names_its_message(self, open_box: OpenBox) -> None:
        box = open_box()
        receipt = await box.put_one(draft("1"))
        assert (receipt.source, receipt.message_id) == (SOURCE, "1")
        assert receipt.id == (await box.get("1")).id

    async def test_a_message_comes_back_whole(self, open_box: OpenBox, kind: BoxKind, now: Now) -> None:
        box, moment = open_box(kind), await now()
        given = draft(
            "1",
            topic="order.placed",
            payload='{"not": "parsed", ',
            format="json",
            headers={"trace": "t-1", "empty": ""},
            correlation_id="c-1",
            group="g-1",
            hash=bytes(range(32)),
            due=moment + timedelta(hours=1, microseconds=1),
            expires=moment + timedelta(days=2, microseconds=999_999),
            received_at=datetime(2001, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC),
        )
        await box.put(given)
        message = await box.get("1")
        kept = (
            *("source", "message_id", "topic", "payload", "format", "headers", "correlation_id", "group"),
            *("collapse_key", "hash", "due", "expires", "received_at"),
        )
        assert {name: getattr(message, name) for name in kept} == {name: getattr(given, name) for name in kept}

    @pytest.mark.parametrize(
        ("payload", "format_"),
        [
            ("", "text"),
            ("plain", "text"),
            (ODD_TEXT, "text"),
            ('{"a": [1, 2]}', "json"),
            (b"", "bytes"),
            (bytes(range(256)), "bytes"),
            (b"\xff\xfe not text", "bytes"),
        ],
        ids=["empty", "text", "odd-text", "json", "no-bytes", "all-bytes", "not-utf8"],
    )
    async def test_a_payload_is_kept_unchanged(self, open_box: OpenBox, payload: str | bytes, format_: Format) -> None:
        box = open_box()
        await box.put(draft("1", payload=payload, format=format_))
        message = await box.take()
        assert (message.payload, message.format) == (payload, format_)
        assert type(message.payload) is type(payload)

    async def test_a_large_payload_is_kept_unchanged(self, open_box: OpenBox) -> None:
        box, payload = open_box(), "ß" * 1_000_000
        await box.put(draft("1", payload=payload))
        assert (await box.take()).payload == payload

    async def test_text_keeps_every_character(self, open_box: OpenBox) -> None:
        box = open_box()
        given = draft(
            ODD_NAME,
            source=ODD_NAME + "s",
            topic=ODD_NAME + "t",
            correlation_id=ODD_NAME + "c",
            group=ODD_NAME + "g",
            headers={ODD_TEXT: ODD_TEXT},
        )
        await box.put(given)
        [message] = await box.find(message_id=ODD_NAME, source=given.source, topic=given.topic, group=given.group)
        assert (message.key, message.topic, message.correlation_id, message.group, message.headers) == (
            given.key,
            given.topic,
            given.correlation_id,
            given.group,
            given.headers,
        )
        assert (await box.put_one(given)).status is ReceiptStatus.DUPLICATE

    async def test_texts_that_differ_in_case_are_different(self, open_box: OpenBox) -> None:
        box = open_box()
        receipts = await box.put(draft("a", topic="Order"), draft("A", topic="order"), draft("a", source="Shop"))
        assert all(receipt.is_new for receipt in receipts)
        assert names(await box.claim(topics={"Order"})) == ["a"]

    async def test_putting_nothing_does_nothing(self, open_box: OpenBox) -> None:
        box = open_box()
        assert await box.put() == []
        assert await box.find() == []

    # -- duplicates ----------------------------------------------------------------------------------------------

    async def test_a_known_key_is_a_duplicate(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        first = await box.put_one(draft("1"))
        again = await box.put_one(draft("1"))
        assert (again.status, again.id, again.state) == (ReceiptStatus.DUPLICATE, first.id, State.WAITING)
        assert names(await box.claim()) == ["1"]

    async def test_one_id_under_two_sources_is_two_messages(self, open_box: OpenBox) -> None:
        box = open_box()
        receipts = await box.put(draft("1", source="a"), draft("1", source="b"))
        assert [receipt.status for receipt in receipts] == [ReceiptStatus.NEW] * 2
        assert len(await box.claim()) == 2

    async def test_a_key_is_a_pair_and_not_its_concatenation(self, open_box: OpenBox) -> None:
        box = open_box()
        receipts = await box.put(draft("bc", source="a"), draft("c", source="ab"))
        assert all(receipt.is_new for receipt in receipts)

    async def test_a_duplicate_replaces_the_content(self, open_box: OpenBox, now: Now) -> None:
        box, due = open_box(), await now() + seconds(60)
        await box.put(draft("1", payload="old", hash=b"old", headers={"a": "1"}, correlation_id="old"))
        newer = draft("1", topic="t2", payload=b"new", format="bytes", hash=b"old", due=due, correlation_id="new")
        await box.put(newer)
        message = await box.get("1")
        assert (message.topic, message.payload, message.format) == ("t2", b"new", "bytes")
        assert (message.headers, message.correlation_id, message.due) == ({}, "new", due)

    async def test_a_duplicate_keeps_the_progress(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        first = await box.put_one(draft("1"))
        await box.retry(await box.take(), delay=seconds(5), error="boom")
        await elapse(1)
        await box.put(draft("1", payload="new"))
        message = await box.get("1")
        assert (message.id, message.attempt, message.deliveries, message.last_error) == (first.id, 1, 1, "boom")

    async def test_first_seen_stays_and_last_seen_moves(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now
    ) -> None:
        box, began = open_box(kind), await now()
        await box.put(draft("1"))
        first = await box.get("1")
        assert began <= first.first_seen <= await now()
        assert first.last_seen == first.first_seen
        await elapse(90)
        later = await now()
        await box.put(draft("1"))
        again = await box.get("1")
        assert again.first_seen == first.first_seen
        assert later <= again.last_seen <= await now()

    async def test_received_at_is_the_callers_and_orders_nothing(self, open_box: OpenBox, now: Now) -> None:
        box, moment = open_box(), await now()
        await box.put(draft("first", received_at=moment), draft("second", received_at=moment - seconds(3600)))
        claimed = await box.claim()
        assert names(claimed) == ["first", "second"]
        assert [message.received_at for message in claimed] == [moment, moment - seconds(3600)]

    async def test_a_done_message_is_left_as_it_is(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        await box.finish(draft("1", payload="handled"))
        before = await box.get("1")
        receipt = await box.put_one(draft("1", payload="again"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.DONE, State.DONE)
        after = await box.get("1")
        assert after._replace(last_seen=before.last_seen) == before
        assert await box.claim() == []

    async def test_a_duplicate_of_a_done_message_is_noted(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.finish(draft("1"))
        before = await box.get("1")
        await elapse(60)
        await box.put(draft("1"))
        assert (await box.get("1")).last_seen == before.last_seen + seconds(60)

    async def test_a_dead_message_is_updated_but_stays_dead(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.bury(draft("1", payload="old"))
        receipt = await box.put_one(draft("1", payload="corrected"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.DEAD, State.DEAD)
        message = await box.get("1")
        assert (message.state, message.payload, message.last_error) == (State.DEAD, "corrected", "given up")
        assert await box.claim() == []

    async def test_revive_dead_makes_it_wait_again(self, open_box: OpenBox) -> None:
        box = open_box(delivery=None)
        await box.put(draft("1", payload="old"))
        await box.retry(await box.take(), delay=seconds(0), error="first")
        await box.fail(await box.take())
        receipt = await box.put_one(draft("1", payload="corrected", revive_dead=True))
        assert (receipt.status, receipt.state) == (ReceiptStatus.REVIVED, State.WAITING)
        message = await box.take()
        assert (message.payload, message.attempt, message.deliveries) == ("corrected", 0, 1)
        assert message.completed_at is None

    async def test_revive_dead_means_nothing_to_the_living_and_the_done(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("done"))
        await box.put(draft("waiting"))
        receipts = await box.put(draft("done", revive_dead=True), draft("waiting", revive_dead=True))
        assert [receipt.status for receipt in receipts] == [ReceiptStatus.DONE, ReceiptStatus.DUPLICATE]
        assert names(await box.claim()) == ["waiting"]

    async def test_a_key_twice_in_one_call_is_decided_in_order(self, open_box: OpenBox) -> None:
        box = open_box()
        receipts = await box.put(draft("1", payload="a"), draft("2"), draft("1", payload="b"), draft("1", payload="c"))
        new, duplicate = ReceiptStatus.NEW, ReceiptStatus.DUPLICATE
        assert [receipt.status for receipt in receipts] == [new, new, duplicate, duplicate]
        assert len({receipt.id for receipt in receipts}) == 2
        message = await box.get("1")
        assert (message.payload, message.revision) == ("c", 2)

    async def test_receipts_come_in_the_order_of_the_drafts(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("done"))
        await box.bury(draft("dead"))
        await box.put(draft("waiting"))
        receipts = await box.put(*(draft(name) for name in ["new", "dead", "done", "waiting", "newer"]))
        assert [receipt.message_id for receipt in receipts] == ["new", "dead", "done", "waiting", "newer"]
        assert [receipt.status.value for receipt in receipts] == ["new", "dead", "done", "duplicate", "new"]

    async def test_a_thousand_at_once(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("500"))
        receipts = await box.put(*(draft(str(n)) for n in range(1000)))
        assert sum(receipt.is_new for receipt in receipts) == 999
        assert len(await box.claim(2000)) == 1000

    async def test_a_revision_is_a_change_of_content(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.put(draft("1"))
        assert (await box.get("1")).revision == 0
        await box.put(draft("1", payload="other"))
        assert (await box.get("1")).revision == 1

    async def test_a_duplicate_does_not_disturb_a_worker(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", payload="old"))
        claimed = await box.take()
        receipt = await box.put_one(draft("1", payload="new"))
        assert (receipt.state, receipt.replaced_under_lease) == (State.CLAIMED, True)
        message = await box.get("1")
        assert (message.payload, message.claim, message.attempt) == ("new", claimed.claim, 0)
        assert await box.ack(claimed) == [True]
        assert await box.state("1") is State.DONE

    async def test_the_same_content_under_a_lease_is_no_replacement(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.take()
        assert not (await box.put_one(draft("1"))).replaced_under_lease

    async def test_a_duplicate_may_move_the_due_time(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box, moment = open_box(), await now()
        await box.put(draft("sooner", due=moment + seconds(100)), draft("later"))
        await box.put(draft("sooner"), draft("later", due=moment + seconds(50)))
        assert names(await box.claim()) == ["sooner"]
        await elapse(50)
        assert "later" in names(await box.claim())

    async def test_a_duplicate_cannot_shorten_a_backoff(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.retry(await box.take(), delay=seconds(50))
        await box.put(draft("1"), draft("1", due=await now() - seconds(1)), draft("1", due=await now() + seconds(1)))
        await elapse(49)
        assert await box.claim() == []
        await elapse(1)
        assert names(await box.claim()) == ["1"]

    async def test_a_duplicate_may_put_off_a_retry(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.retry(await box.take(), delay=seconds(5))
        await box.put(draft("1", due=await now() + seconds(60)))
        await elapse(59)
        assert await box.claim() == []
        await elapse(1)
        assert names(await box.claim()) == ["1"]

    async def test_a_duplicate_keeps_the_place_of_the_first(self, open_box: OpenBox, now: Now) -> None:
        box, moment = open_box(), await now()
        await box.put(draft("1", group="g", received_at=moment))
        await box.put(draft("1", group="other", received_at=None))
        message = await box.get("1")
        assert (message.group, message.received_at) == ("g", moment)

    async def test_of_many_that_put_one_key_at_once_one_is_new(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        receipts = await asyncio.gather(*(box.put_one(draft("1", payload=str(n))) for n in range(20)))
        statuses = sorted(receipt.status.value for receipt in receipts)
        assert statuses == ["duplicate"] * 19 + ["new"]
        assert len(await box.find()) == 1
