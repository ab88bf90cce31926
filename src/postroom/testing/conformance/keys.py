"""The verbs `record` and `mark`, which need no claim."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.spi import Draft, Ending, Key, KeyStatus, Mark, ReceiptStatus, Settlement, State
from postroom.testing.conformance.base import (
    SOURCE,
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


async def record(box: BoxUnderTest, message_id: str, **fields: Any) -> KeyStatus:
    [status] = await box.store.record(box.box, [Draft(SOURCE, message_id, **fields)])
    return status


async def mark(box: BoxUnderTest, message_id: str, to: Mark, **fields: Any) -> bool:
    [changed] = await box.store.mark(box.box, [Key(SOURCE, message_id)], to, **fields)
    return changed


async def bring(box: BoxUnderTest, state: State) -> None:
    """Puts a message "1" and brings it into this state."""
    if state is State.SEEN:
        await record(box, "1")
        return
    await box.put(draft("1"))
    if state is not State.WAITING:
        claimed = await box.take()
        if state is State.DONE:
            await box.ack(claimed)
        elif state is State.DEAD:
            await box.fail(claimed, error="given up")
    assert await box.state("1") is state


class RecordConformance(Suite):
    """`record`: the deduplication check."""

    async def test_an_unknown_key_becomes_seen(self, open_box: OpenBox) -> None:
        box = open_box()
        assert await record(box, "1") == KeyStatus(State.SEEN, is_new=True, conflict=False)
        message = await box.get("1")
        assert (message.state, message.topic, message.payload) == (State.SEEN, "", "")
        assert await box.claim() == []

    async def test_a_known_key_is_noted(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await record(box, "1")
        first = await box.get("1")
        await elapse(60)
        began = await now()
        assert await record(box, "1") == KeyStatus(State.SEEN, is_new=False, conflict=False)
        message = await box.get("1")
        assert message.first_seen == first.first_seen
        assert began <= message.last_seen <= await now()

    async def test_a_done_key_is_known_as_done(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.finish(draft("1"))
        before = await box.get("1")
        await elapse(60)
        assert await record(box, "1") == KeyStatus(State.DONE, is_new=False, conflict=False)
        assert await box.get("1") == before

    @pytest.mark.parametrize("state", [State.SEEN, State.WAITING, State.CLAIMED, State.DEAD])
    async def test_a_check_changes_nothing_but_last_seen(self, open_box: OpenBox, elapse: Elapse, state: State) -> None:
        box = open_box()
        await bring(box, state)
        before = await box.get("1")
        await elapse(1)
        assert await record(box, "1") == KeyStatus(state, is_new=False, conflict=False)
        assert await box.get("1") == before._replace(last_seen=before.last_seen + seconds(1))

    async def test_a_hash_is_kept_and_compared(self, open_box: OpenBox) -> None:
        box = open_box()
        await record(box, "1", hash=b"first")
        assert (await box.get("1")).hash == b"first"
        assert not (await record(box, "1", hash=b"first")).conflict
        assert not (await record(box, "1")).conflict
        assert (await record(box, "1", hash=b"other")).conflict
        assert (await box.get("1")).hash == b"first"

    async def test_an_empty_hash_is_filled(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        assert not (await record(box, "1", hash=b"first")).conflict
        assert (await box.get("1")).hash == b"first"
        assert (await box.put_one(draft("1", hash=b"other"))).status is ReceiptStatus.CONFLICT

    async def test_a_check_compares_hashes_of_one_algorithm(self, open_box: OpenBox) -> None:
        box = open_box()
        await record(box, "1", hash=b"first", hash_algorithm="md5")
        assert not (await record(box, "1", hash=b"other", hash_algorithm="sha256")).conflict

    async def test_a_done_key_is_compared_too(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("1", hash=b"first"))
        assert await record(box, "1", hash=b"other") == KeyStatus(State.DONE, is_new=False, conflict=True)

    async def test_sightings_come_in_order(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("done"))
        key_statuses = await box.store.record(box.box, [Draft(SOURCE, name) for name in ["new", "done", "new"]])
        assert [(s.state, s.is_new) for s in key_statuses] == [
            (State.SEEN, True),
            (State.DONE, False),
            (State.SEEN, False),
        ]
        assert list(await box.store.record(box.box, [])) == []

    async def test_of_many_that_check_one_key_at_once_one_is_first(self, open_box: OpenBox) -> None:
        box = open_box()
        key_statuses = await asyncio.gather(*(record(box, "1") for _ in range(20)))
        assert sorted(status.is_new for status in key_statuses) == [False] * 19 + [True]
        assert len(await box.find()) == 1

    async def test_what_was_only_seen_becomes_work_when_it_is_put(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await record(box, "1")
        seen = await box.get("1")
        await elapse(10)
        receipt = await box.put_one(draft("1", topic="order.placed", payload="here", headers={"a": "b"}))
        assert (receipt.status, receipt.state, receipt.id) == (ReceiptStatus.NEW, State.WAITING, seen.id)
        message = await box.take()
        assert (message.topic, message.payload, message.headers) == ("order.placed", "here", {"a": "b"})
        assert (message.attempt, message.first_seen) == (0, seen.first_seen)

    async def test_what_was_only_seen_waits_for_its_due_time(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await record(box, "1")
        await box.put(draft("1", due=await now() + seconds(10)))
        assert await box.claim() == []
        await elapse(10)
        assert names(await box.claim()) == ["1"]

    async def test_content_that_differs_from_the_check_is_a_conflict(self, open_box: OpenBox) -> None:
        box = open_box()
        await record(box, "1", hash=b"checked")
        receipt = await box.put_one(draft("1", hash=b"sent", on_conflict="reject"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.REJECTED, State.SEEN)
        receipt = await box.put_one(draft("1", hash=b"sent"))
        assert (receipt.status, receipt.state) == (ReceiptStatus.CONFLICT, State.WAITING)


class MarkConformance(Suite):
    """`mark`: changes of state without a claim."""

    async def test_processing_moves_what_was_seen(self, open_box: OpenBox) -> None:
        box = open_box()
        await record(box, "1")
        assert await mark(box, "1", "processing")
        assert names(await box.claim()) == ["1"]

    @pytest.mark.parametrize("state", [State.WAITING, State.CLAIMED, State.DONE, State.DEAD])
    async def test_processing_moves_nothing_else(self, open_box: OpenBox, state: State) -> None:
        box = open_box()
        await bring(box, state)
        before = await box.get("1")
        assert not await mark(box, "1", "processing")
        assert await box.get("1") == before

    @pytest.mark.parametrize("state", [State.SEEN, State.WAITING, State.CLAIMED, State.DEAD])
    async def test_processed_moves_whatever_is_not_done(self, open_box: OpenBox, now: Now, state: State) -> None:
        box = open_box()
        await bring(box, state)
        began = await now()
        assert await mark(box, "1", "processed")
        message = await box.get("1")
        assert (message.state, message.ending, message.completed_by) == (State.DONE, Ending.MARKED, None)
        assert message.completed_at is not None
        assert began <= message.completed_at <= await now()
        assert await box.claim() == []

    async def test_processed_needs_no_earlier_row(self, open_box: OpenBox) -> None:
        box = open_box()
        assert await mark(box, "1", "processed")
        assert await box.state("1") is State.DONE
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE

    @pytest.mark.parametrize("to", ["processing", "processed", "dead"])
    async def test_done_is_final(self, open_box: OpenBox, to: Mark) -> None:
        box = open_box()
        await bring(box, State.DONE)
        before = await box.get("1")
        assert not await mark(box, "1", to, error="too late")
        assert await box.get("1") == before

    @pytest.mark.parametrize("state", [State.SEEN, State.WAITING, State.CLAIMED])
    async def test_dead_moves_whatever_is_not_finished(self, open_box: OpenBox, now: Now, state: State) -> None:
        box = open_box()
        await bring(box, state)
        began = await now()
        assert await mark(box, "1", "dead", error="by hand")
        message = await box.get("1")
        assert (message.state, message.last_error, message.claim) == (State.DEAD, "by hand", None)
        assert message.completed_at is not None
        assert began <= message.completed_at <= await now()
        assert await box.claim() == []

    async def test_dead_is_dead_already(self, open_box: OpenBox) -> None:
        box = open_box()
        await bring(box, State.DEAD)
        assert not await mark(box, "1", "dead", error="again")
        assert (await box.get("1")).last_error == "given up"

    @pytest.mark.parametrize("to", ["processing", "dead"])
    async def test_an_unknown_key_stays_unknown(self, open_box: OpenBox, to: Mark) -> None:
        box = open_box()
        assert not await mark(box, "1", to)
        assert await box.find() == []

    @pytest.mark.parametrize("to", ["processed", "dead"])
    async def test_a_mark_ends_a_lease(self, open_box: OpenBox, to: Mark) -> None:
        box = open_box()
        await box.put(draft("1"))
        claimed = await box.take()
        assert await mark(box, "1", to)
        before = await box.get("1")
        late = [Settlement.done(claim_of(claimed)), Settlement.retry(claim_of(claimed), error="late")]
        assert await box.settle(*late) == [False, False]
        assert await box.get("1") == before

    async def test_marks_return_results_in_order(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("done"))
        await record(box, "seen")
        wanted = [Key(SOURCE, name) for name in ["done", "seen", "unknown", "seen"]]
        assert list(await box.store.mark(box.box, wanted, "dead", error="e")) == [False, True, False, False]
        assert list(await box.store.mark(box.box, [], "dead")) == []
