"""Outcomes: what becomes of a claimed message, and whose word counts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta

import pytest

from postroom import Backoff
from postroom.errors import AmbiguousMessageId
from postroom.spi import (
    Ask,
    Claim,
    Delivery,
    Ending,
    Held,
    Keeping,
    ReceiptStatus,
    Settlement,
    State,
    Store,
    Turner,
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
    claim_of,
    draft,
    names,
    seconds,
)

VERDICTS: dict[str, Callable[[Claim | Held], Settlement]] = {
    "ack": Settlement.done,
    "retry": lambda target: Settlement.retry(target, error="late"),
    "release": Settlement.release,
    "fail": lambda target: Settlement.dead(target, error="late"),
}
each_verdict = pytest.mark.parametrize("verdict", VERDICTS.values(), ids=VERDICTS.keys())


class AckConformance(Suite):
    """Success."""

    @pytest.mark.req("IBX-044", "IBX-049", "OBX-021", "OBX-022", "OBX-023")
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

    @pytest.mark.req("IBX-047", "OBX-026")
    async def test_what_is_done_is_never_claimed_again(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.finish(draft("1"))
        await elapse(LEASE * 100)
        await box.store.reap(box.box, 100)
        assert await box.claim() == []

    @pytest.mark.req("IBX-048", "IBX-059", "IBX-066")
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
        answers = await asyncio.gather(*(box.ack(message) for _ in range(10)))
        assert sorted(answers) == [[False]] * 9 + [[True]]

    async def test_hundreds_at_once(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(*(draft(str(n)) for n in range(500)))
        assert all(await box.ack(*await box.claim(500)))
        assert (await box.counts())[State.DONE] == 500

    @pytest.mark.req("C-18")
    async def test_on_success_delete_forgets_the_content_and_keeps_the_key(self, open_box: OpenBox) -> None:
        box = open_box(keeping=Keeping(on_success="delete"))
        await box.finish(draft("1", payload=b"secret", format="bytes", headers={"a": "b"}))
        message = await box.get("1")
        assert (message.state, message.payload, message.headers) == (State.DONE, "", {})
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE

    @pytest.mark.req("C-22")
    async def test_an_ack_of_old_content_can_ask_for_another_turn(self, open_box: OpenBox) -> None:
        box = open_box(delivery=Delivery(on_stale_ack="requeue"))
        await box.put(draft("1", payload="old"))
        claimed = await box.take()
        await box.put(draft("1", payload="new"))
        assert await box.ack(claimed) == [True]
        message = await box.take()
        assert (message.payload, message.attempt) == ("new", 0)
        assert await box.ack(message) == [True]
        assert await box.state("1") is State.DONE

    @pytest.mark.req("C-22")
    async def test_an_ack_of_current_content_is_done(self, open_box: OpenBox) -> None:
        box = open_box(delivery=Delivery(on_stale_ack="requeue"))
        await box.put(draft("1"))
        claimed = await box.take()
        await box.put(draft("1"))
        await box.ack(claimed)
        assert await box.state("1") is State.DONE


class RetryConformance(Suite):
    """Abandon, which counts, and release, which does not."""

    @pytest.mark.req("IBX-050", "IBX-051", "OBX-029", "OBX-030", "C-05")
    async def test_retry_gives_it_back_and_counts(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        for attempt in (1, 2, 3):
            assert await box.retry(await box.take()) == [True]
            message = await box.get("1")
            assert (message.state, message.claim, message.attempt) == (State.WAITING, None, attempt)
            await elapse(60)

    @pytest.mark.req("IBX-052", "IBX-056", "OBX-031", "OBX-034", "C-08")
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

    @pytest.mark.req("C-08")
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

    @pytest.mark.req("IBX-053", "IBX-056", "C-08")
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

    @pytest.mark.req("IBX-057", "OBX-035", "C-31")
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

    @pytest.mark.req("C-05", "C-65", "RHI-145")
    async def test_release_does_not_count(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1"))
        claimed = await box.take()
        assert await box.release(claimed) == [True]
        message = await box.get("1")
        assert (message.state, message.claim, message.attempt) == (State.WAITING, None, 0)
        assert (message.first_seen, message.deliveries) == (claimed.first_seen, 1)
        assert names(await box.claim(owner=BOB)) == ["1"]

    @pytest.mark.req("C-05")
    async def test_release_may_wait(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.release(await box.take(), delay=seconds(20))
        await elapse(19)
        assert await box.claim() == []
        await elapse(1)
        assert (await box.take()).attempt == 0


class FailConformance(Suite):
    """The end without success."""

    @pytest.mark.req("RHI-064", "IBX-060", "IBX-061", "IBX-065", "OBX-036", "OBX-037", "C-06", "C-44", "RHI-146")
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

    @pytest.mark.req("IBX-064", "IBX-060", "OBX-042", "OBX-036")
    async def test_what_is_dead_is_never_claimed_again(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.bury(draft("1"))
        await elapse(LEASE * 100)
        await box.store.reap(box.box, 100)
        assert await box.claim() == []

    @pytest.mark.req("C-44")
    async def test_discard_leaves_a_trace_without_content(self, open_box: OpenBox) -> None:
        box = open_box(keeping=Keeping(dead_letter="discard"))
        await box.bury(draft("1", payload="poison", headers={"a": "b"}))
        message = await box.get("1")
        assert (message.state, message.ending, message.last_error) == (State.DONE, Ending.DISCARDED, "given up")
        assert (message.payload, message.headers, message.completed_by) == ("", {}, None)
        assert (await box.put_one(draft("1"))).status is ReceiptStatus.DONE


class ProofConformance(Suite):
    """Whose outcome counts: owner and fence, or the owner alone for bare ids."""

    @pytest.mark.req(
        *("IBX-045", "IBX-054", "IBX-062", "OBX-024", "OBX-032", "OBX-038"),
        *("IBX-046", "IBX-055", "IBX-063", "OBX-025", "OBX-033", "OBX-039", "C-26"),
    )
    @each_verdict
    async def test_another_owner_settles_nothing(
        self, open_box: OpenBox, kind: BoxKind, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        claimed = await box.take(owner=ALICE)
        foreign = claim_of(claimed)._replace(owner=BOB)
        assert await box.settle(verdict(foreign), verdict(Held(BOB, "1"))) == [False, False]
        assert await box.get("1") == claimed

    @pytest.mark.req("IBX-046", "IBX-055", "IBX-063", "OBX-025", "OBX-033", "OBX-039")
    @each_verdict
    async def test_unknown_messages_are_skipped(
        self, open_box: OpenBox, kind: BoxKind, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        claimed = await box.take()
        unknown = claim_of(claimed)._replace(id=claimed.id + 1000)
        targets = [verdict(unknown), verdict(Held(ALICE, "nobody")), verdict(Held(ALICE, "1", "elsewhere"))]
        assert await box.settle(*targets) == [False] * 3
        assert await box.get("1") == claimed

    @pytest.mark.req("C-26", "IBX-045", "OBX-024")
    @each_verdict
    async def test_a_stale_claim_is_refused_though_the_owner_is_the_same(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        old = await box.take(owner=ALICE)
        await elapse(LEASE)
        new = await box.take(owner=ALICE)
        assert await box.settle(verdict(claim_of(old))) == [False]
        assert await box.get("1") == new
        assert await box.ack(new) == [True]

    @pytest.mark.req("C-26")
    @pytest.mark.parametrize("newest_first", [True, False])
    async def test_a_stale_and_a_good_claim_in_one_call(
        self, open_box: OpenBox, elapse: Elapse, newest_first: bool
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        old = await box.take(owner=ALICE)
        await elapse(LEASE)
        new = await box.take(owner=ALICE)
        if newest_first:
            assert await box.ack(new, old) == [True, False]
        else:
            assert await box.ack(old, new) == [False, True]
        assert await box.state("1") is State.DONE

    @pytest.mark.req("C-26")
    @each_verdict
    async def test_a_stale_claim_of_the_same_message_changes_nothing(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        """Whatever it says, and whether it stands before or behind the claim that holds."""
        box = open_box()
        await box.put(*(draft(str(n)) for n in range(2 * len(VERDICTS))))
        stale = [claim_of(message) for message in await box.claim()]
        await elapse(LEASE + 1)
        fresh = {claim.id: claim for claim in map(claim_of, await box.claim())}
        for number, (claim, late) in enumerate(zip(stale, [*VERDICTS.values()] * 2, strict=True)):
            pair = [late(claim), verdict(fresh[claim.id])]
            if number < len(VERDICTS):
                assert await box.settle(*pair) == [False, True]
            else:
                assert await box.settle(*reversed(pair)) == [True, False]
        results = {(message.state, message.attempt, message.last_error) for message in await box.find()}
        assert len(results) == 1, "it depends on what the stale claim said"

    @pytest.mark.parametrize("first", VERDICTS)
    @pytest.mark.parametrize("second", VERDICTS)
    async def test_of_two_outcomes_for_one_claim_the_first_counts_that_is_no_success(
        self, open_box: OpenBox, first: str, second: str
    ) -> None:
        """A message that was done and also failed has failed: to do it again is safer than to lose it."""
        box = open_box()
        await box.put(draft("1"), draft("2"))
        one, other = [claim_of(message) for message in await box.claim()]
        counts = second if first == "ack" else first
        is_first = counts == first
        assert await box.settle(VERDICTS[first](one), VERDICTS[second](one)) == [is_first, not is_first]
        assert await box.settle(VERDICTS[counts](other)) == [True]
        both = [await box.get("1"), await box.get("2")]
        results = {(message.state, message.ending, message.attempt, message.last_error) for message in both}
        assert len(results) == 1

    @pytest.mark.req("C-26")
    @each_verdict
    async def test_a_stale_claim_does_not_break_up_a_batch(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        """A batch that is given back is given back whole, wherever a stale claim of one of them stands in the list."""
        box = open_box(fifo=True)
        for nth in range(3):
            await box.put(*(draft(f"{nth}-{n}", group=str(nth)) for n in range(3)))
            stale = [claim_of(message) for message in await box.claim(3)]
            await elapse(LEASE + 1)
            for order in itertools.permutations(range(4)):
                fresh = [claim_of(message) for message in await box.claim(3)]
                given = [verdict(stale[nth]), *map(Settlement.release, fresh)]
                kept = await box.settle(*(given[place] for place in order))
                assert kept == [place != 0 for place in order], order
            assert all(await box.ack(*await box.claim(3)))

    @pytest.mark.req("C-26", "IBX-045", "OBX-024")
    @pytest.mark.parametrize("good_first", [True, False])
    async def test_a_foreign_and_a_good_claim_in_one_call(self, open_box: OpenBox, good_first: bool) -> None:
        box = open_box()
        await box.put(draft("1"))
        good = claim_of(await box.take(owner=ALICE))
        claims = [good, good._replace(owner=BOB)][:: 1 if good_first else -1]
        assert await box.settle(*map(Settlement.done, claims)) == [good_first, not good_first]
        assert (await box.get("1")).completed_by == ALICE

    @pytest.mark.req("C-29", "IBX-045")
    @each_verdict
    async def test_late_but_not_replaced_counts(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        claimed = await box.take()
        await elapse(LEASE * 10)
        assert await box.settle(verdict(claim_of(claimed))) == [True]
        assert (await box.get("1")).claim is None

    @pytest.mark.req("C-29", "IBX-069")
    @each_verdict
    async def test_after_a_reap_it_is_too_late(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        claimed = await box.take()
        await elapse(LEASE)
        await box.store.reap(box.box, 10)
        assert await box.settle(verdict(claim_of(claimed)), verdict(Held(ALICE, "1"))) == [False, False]
        assert await box.state("1") is State.WAITING

    async def test_a_claim_is_good_in_its_own_box_only(self, open_box: OpenBox) -> None:
        box, other = open_box(name="one"), open_box(name="two")
        await box.put(draft("1"))
        claimed = await box.take()
        assert await other.ack(claimed) == [False]
        assert await box.get("1") == claimed

    @pytest.mark.req("RHI-065", "RHI-068")
    async def test_outcomes_of_all_kinds_in_one_call(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("stale"))
        [stale] = await box.claim()
        await elapse(LEASE)
        await box.put(*(draft(name) for name in ["done", "retry", "release", "dead"]))
        claims = {message.message_id: claim_of(message) for message in await box.claim()}
        answers = await box.settle(
            Settlement.dead(claims["dead"], error="poison"),
            Settlement.done(claim_of(stale)),
            Settlement.done(claims["done"]),
            Settlement.release(claims["release"]),
            Settlement.retry(Held(ALICE, "nobody")),
            Settlement.retry(claims["retry"], delay=seconds(5), error="boom"),
        )
        assert answers == [True, False, True, True, False, True]
        state = {message.message_id: (message.state, message.attempt) for message in await box.find()}
        assert state == {
            "stale": (State.CLAIMED, 0),
            "done": (State.DONE, 0),
            "retry": (State.WAITING, 1),
            "release": (State.WAITING, 0),
            "dead": (State.DEAD, 0),
        }

    @pytest.mark.req("IBX-102", "OBX-091", "C-25", "RHI-080")
    async def test_an_ambiguous_id_is_refused_and_nothing_is_settled(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        await box.put(draft("1", source="a"), draft("1", source="b"), draft("2"))
        claimed = await box.claim()
        good = Settlement.done(claim_of(claimed[2]))
        with pytest.raises(AmbiguousMessageId):
            await box.settle(good, Settlement.dead(Held(ALICE, "1"), error="which?"), good)
        assert await box.find() == claimed

    @pytest.mark.req("C-25")
    async def test_an_id_is_ambiguous_though_one_only_is_claimed(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("1", source="a"))
        await box.put(draft("1", source="b"))
        await box.take()
        with pytest.raises(AmbiguousMessageId):
            await box.settle(Settlement.done(Held(ALICE, "1")))

    @pytest.mark.req("C-25")
    @each_verdict
    async def test_a_bare_id_names_what_its_owner_holds(
        self, open_box: OpenBox, verdict: Callable[[Claim | Held], Settlement]
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.take()
        assert await box.settle(verdict(Held(ALICE, "1"))) == [True]
        assert (await box.get("1")).claim is None
        assert await box.settle(verdict(Held(ALICE, "1"))) == [False]

    @pytest.mark.req("C-25")
    async def test_with_its_source_an_id_is_clear(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", source="a"), draft("1", source="b"))
        await box.claim()
        assert await box.settle(Settlement.done(Held(ALICE, "1", "b"))) == [True]
        assert [message.state for message in await box.find()] == [State.CLAIMED, State.DONE]

    @pytest.mark.req("C-26")
    async def test_a_bare_id_means_the_claim_that_holds_now(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.take(owner=ALICE)
        await elapse(LEASE)
        await box.take(owner=BOB)
        assert await box.settle(Settlement.done(Held(ALICE, "1"))) == [False]
        assert await box.settle(Settlement.done(Held(BOB, "1"))) == [True]
        assert (await box.get("1")).completed_by == BOB

    async def test_the_end_that_a_claim_names_does_not_matter(self, open_box: OpenBox) -> None:
        """A renewal moves it, and the handler may still have the old one."""
        box = open_box()
        await box.put(draft("1"))
        claim = claim_of(await box.take())
        assert await box.settle(Settlement.done(claim._replace(until=claim.until - timedelta(days=1)))) == [True]


class TurnConformance(Suite):
    """`turn`, for stores that settle and claim in one go."""

    @pytest.fixture
    def turner(self, store: Store) -> Turner:
        if not isinstance(store, Turner):
            pytest.skip("this store has no `turn`: a worker settles and claims by two calls")
        return store

    async def test_a_turn_settles_and_then_claims(self, open_box: OpenBox, turner: Turner) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(str(n), group="g") for n in range(3)))
        [head] = await box.claim(1)
        unknown = claim_of(head)._replace(id=head.id + 1000)
        outcomes = [Settlement.done(unknown), Settlement.done(claim_of(head))]
        settled, claimed = await turner.turn(box.box, outcomes, Ask(BOB, seconds(LEASE), 10))
        assert list(settled) == [False, True]
        assert names(claimed) == ["1", "2"]
        assert {claim_of(message).owner for message in claimed} == {BOB}
        assert await box.state("0") is State.DONE
