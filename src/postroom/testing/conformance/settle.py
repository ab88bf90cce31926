"""The verb `settle`: success, retry, release and failure."""

from __future__ import annotations

import asyncio

import pytest

from postroom import Backoff
from postroom.spi import (
    Delivery,
    Ending,
    ReceiptStatus,
    Retention,
    State,
)
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    BoxKind,
    Elapse,
    Now,
    OpenBox,
    Suite,
    draft,
    names,
    seconds,
)


class AckConformance(Suite):
    """`Settlement.done`."""

    async def test_ack_makes_it_done(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now) -> None:
        box = open_box(kind)
        await box.put(draft("1", payload="kept"))
        claimed = await box.take(owner=ALICE)
        await elapse(5)
        began = await now()
        assert await box.ack(claimed) == [True]
        message = await box.get("1")
        assert (message.state, message.ending, message.claim) == (State.DONE, Ending.HANDLED, None)
        assert message.completed_by == ALICE
        assert message.completed_at is not None
        assert began <= message.completed_at <= await now()
        assert (message.payload, message.deliveries) == ("kept", 1)

    async def test_what_is_done_is_never_claimed_again(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.finish(draft("1"))
        await elapse(LEASE * 100)
        await box.store.reap(box.box, 100)
        assert await box.claim() == []

    async def test_settling_nothing_does_nothing(self, open_box: OpenBox) -> None:
        assert await open_box().settle() == []

    async def test_one_claim_settles_once(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"), draft("2"))
        first, second = await box.claim()
        assert sorted(await box.ack(first, first)) == [False, True]
        assert await box.ack(second) == [True]
        assert await box.ack(second) == [False]

    async def test_of_many_acks_at_once_one_counts(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        message = await box.take()
        results = await asyncio.gather(*(box.ack(message) for _ in range(10)))
        assert sorted(results) == [[False]] * 9 + [[True]]

    async def test_hundreds_at_once(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(*(draft(str(n)) for n in range(500)))
        assert all(await box.ack(*await box.claim(500)))
        assert (await box.counts())[State.DONE] == 500

    async def test_on_success_delete_forgets_the_content_and_keeps_the_key(self, open_box: OpenBox) -> None:
        box = open_box(retention=Retention(on_success="delete"))
        await box.finish(draft("1", payload=b"secret", format="bytes", headers={"a": "b"}))
        message = await box.get("1")
        assert (message.state, message.payload, message.headers) == (State.DONE, "", {})
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE

    async def test_an_ack_of_old_content_can_give_the_message_back(self, open_box: OpenBox) -> None:
        box = open_box(delivery=Delivery(on_stale_ack="requeue"))
        await box.put(draft("1", payload="old"))
        claimed = await box.take()
        await box.put(draft("1", payload="new"))
        assert await box.ack(claimed) == [True]
        message = await box.take()
        assert (message.payload, message.attempt) == ("new", 0)
        assert await box.ack(message) == [True]
        assert await box.state("1") is State.DONE

    async def test_an_ack_of_current_content_is_done(self, open_box: OpenBox) -> None:
        box = open_box(delivery=Delivery(on_stale_ack="requeue"))
        await box.put(draft("1"))
        claimed = await box.take()
        await box.put(draft("1"))
        await box.ack(claimed)
        assert await box.state("1") is State.DONE


class RetryConformance(Suite):
    """`Settlement.retry`, which counts an attempt, and `Settlement.release`, which does not."""

    async def test_retry_gives_it_back_and_counts(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        for attempt in (1, 2, 3):
            assert await box.retry(await box.take()) == [True]
            message = await box.get("1")
            assert (message.state, message.claim, message.attempt) == (State.WAITING, None, attempt)
            await elapse(60)

    async def test_the_backoff_doubles_from_two_seconds_to_a_minute(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        for wait in (2, 4, 8, 16, 32, 60, 60):
            await box.retry(await box.take())
            await elapse(wait - 0.001)
            assert await box.claim() == [], f"claimable before {wait} s had passed"
            await elapse(0.001)

    async def test_the_backoff_is_the_boxes_policy(self, open_box: OpenBox, elapse: Elapse) -> None:
        patient = open_box(name="patient", delivery=Delivery(backoff=Backoff.constant(7)))
        await patient.put(draft("1"))
        await patient.retry(await patient.take())
        await elapse(6)
        assert await patient.claim() == []
        await elapse(1)
        assert names(await patient.claim()) == ["1"]
        eager = open_box(name="eager", delivery=Delivery(backoff=Backoff.immediate()))
        await eager.put(draft("1"))
        await eager.retry(await eager.take())
        assert names(await eager.claim()) == ["1"]

    @pytest.mark.parametrize("delay", [0.5, 1, 3600])
    async def test_a_delay_takes_the_place_of_the_backoff(
        self, open_box: OpenBox, elapse: Elapse, delay: float
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.retry(await box.take(), delay=seconds(delay))
        await elapse(delay - 0.1)
        assert await box.claim() == []
        await elapse(0.1)
        assert (await box.take()).attempt == 1

    async def test_the_error_is_kept_until_the_next(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        await box.retry(await box.take(), error="first: ünïcode 🧾")
        assert (await box.get("1")).last_error == "first: ünïcode 🧾"
        await elapse(60)
        await box.retry(await box.take())
        assert (await box.get("1")).last_error == "first: ünïcode 🧾"
        await elapse(60)
        await box.retry(await box.take(), error="second")
        assert (await box.get("1")).last_error == "second"
        await elapse(60)
        await box.ack(await box.take())
        assert ((await box.get("1")).last_error, (await box.get("1")).attempt) == ("second", 3)

    async def test_release_does_not_count(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        claimed = await box.take()
        assert await box.release(claimed) == [True]
        message = await box.get("1")
        assert (message.state, message.claim, message.attempt) == (State.WAITING, None, 0)
        assert (message.first_seen, message.deliveries) == (claimed.first_seen, 1)
        assert names(await box.claim(owner=BOB)) == ["1"]

    async def test_release_may_wait(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.release(await box.take(), delay=seconds(20))
        await elapse(19)
        assert await box.claim() == []
        await elapse(1)
        assert (await box.take()).attempt == 0


class FailConformance(Suite):
    """`Settlement.dead`."""

    async def test_fail_makes_it_dead(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now) -> None:
        box = open_box(kind)
        await box.put(draft("1", payload="evidence"))
        claimed = await box.take()
        await elapse(5)
        began = await now()
        assert await box.fail(claimed, error="poison 🧪") == [True]
        message = await box.get("1")
        assert (message.state, message.last_error, message.claim) == (State.DEAD, "poison 🧪", None)
        assert message.payload == "evidence"
        assert message.completed_at is not None
        assert began <= message.completed_at <= await now()

    async def test_what_is_dead_is_never_claimed_again(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.bury(draft("1"))
        await elapse(LEASE * 100)
        await box.store.reap(box.box, 100)
        assert await box.claim() == []

    async def test_discard_leaves_a_trace_without_content(self, open_box: OpenBox) -> None:
        box = open_box(retention=Retention(dead_letter="discard"))
        await box.bury(draft("1", payload="poison", headers={"a": "b"}))
        message = await box.get("1")
        assert (message.state, message.ending, message.last_error) == (State.DONE, Ending.DISCARDED, "given up")
        assert (message.payload, message.headers, message.completed_by) == ("", {}, None)
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE
