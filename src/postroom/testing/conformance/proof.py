"""Claims as proof: which outcomes a store applies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta

import pytest

from postroom.errors import AmbiguousMessageId
from postroom.spi import Claim, NamedTarget, Settlement, State
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    BoxKind,
    Elapse,
    OpenBox,
    Suite,
    claim_of,
    draft,
    seconds,
)

VERDICTS: dict[str, Callable[[Claim | NamedTarget], Settlement]] = {
    "ack": Settlement.done,
    "retry": lambda target: Settlement.retry(target, error="late"),
    "release": Settlement.release,
    "fail": lambda target: Settlement.dead(target, error="late"),
}
each_verdict = pytest.mark.parametrize("verdict", VERDICTS.values(), ids=VERDICTS.keys())


class ProofConformance(Suite):
    """A claim proves a lease by owner and fence. A bare message id proves it by the owner alone."""

    @each_verdict
    async def test_another_owner_settles_nothing(
        self, open_box: OpenBox, kind: BoxKind, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        claimed = await box.take(owner=ALICE)
        foreign = claim_of(claimed)._replace(owner=BOB)
        assert await box.settle(verdict(foreign), verdict(NamedTarget(BOB, "1"))) == [False, False]
        assert await box.get("1") == claimed

    @each_verdict
    async def test_unknown_messages_are_skipped(
        self, open_box: OpenBox, kind: BoxKind, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        claimed = await box.take()
        unknown = claim_of(claimed)._replace(id=claimed.id + 1000)
        targets = [
            verdict(unknown),
            verdict(NamedTarget(ALICE, "unknown")),
            verdict(NamedTarget(ALICE, "1", "elsewhere")),
        ]
        assert await box.settle(*targets) == [False] * 3
        assert await box.get("1") == claimed

    @each_verdict
    async def test_a_stale_claim_is_refused_though_the_owner_is_the_same(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        old = await box.take(owner=ALICE)
        await elapse(LEASE)
        new = await box.take(owner=ALICE)
        assert await box.settle(verdict(claim_of(old))) == [False]
        assert await box.get("1") == new
        assert await box.ack(new) == [True]

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

    @each_verdict
    async def test_a_stale_claim_of_the_same_message_changes_nothing(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        """For every outcome of the stale claim, before and after the valid one in the list."""
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
        assert len(results) == 1, "the result depends on the outcome of the stale claim"

    @pytest.mark.parametrize("first", VERDICTS)
    @pytest.mark.parametrize("second", VERDICTS)
    async def test_of_two_outcomes_for_one_claim_the_first_counts_that_is_no_success(
        self, open_box: OpenBox, first: str, second: str
    ) -> None:
        """A message with a success and a failure has failed: to repeat it is safer than to lose it."""
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

    @each_verdict
    async def test_a_stale_claim_does_not_break_up_a_batch(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        """A batch that is given back stays whole, wherever a stale claim is in the list."""
        box = open_box(fifo=True)
        for nth in range(3):
            await box.put(*(draft(f"{nth}-{n}", group=str(nth)) for n in range(3)))
            stale = [claim_of(message) for message in await box.claim(3)]
            await elapse(LEASE + 1)
            for order in itertools.permutations(range(4)):
                fresh = [claim_of(message) for message in await box.claim(3)]
                given = [verdict(stale[nth]), *map(Settlement.release, fresh)]
                kept = await box.settle(*(given[index] for index in order))
                assert kept == [index != 0 for index in order], order
            assert all(await box.ack(*await box.claim(3)))

    @pytest.mark.parametrize("good_first", [True, False])
    async def test_a_foreign_and_a_good_claim_in_one_call(self, open_box: OpenBox, good_first: bool) -> None:
        box = open_box()
        await box.put(draft("1"))
        good = claim_of(await box.take(owner=ALICE))
        claims = [good, good._replace(owner=BOB)][:: 1 if good_first else -1]
        assert await box.settle(*map(Settlement.done, claims)) == [good_first, not good_first]
        assert (await box.get("1")).completed_by == ALICE

    @each_verdict
    async def test_late_but_not_replaced_counts(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        claimed = await box.take()
        await elapse(LEASE * 10)
        assert await box.settle(verdict(claim_of(claimed))) == [True]
        assert (await box.get("1")).claim is None

    @each_verdict
    async def test_after_a_reap_it_is_too_late(
        self, open_box: OpenBox, elapse: Elapse, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        claimed = await box.take()
        await elapse(LEASE)
        await box.store.reap(box.box, 10)
        assert await box.settle(verdict(claim_of(claimed)), verdict(NamedTarget(ALICE, "1"))) == [False, False]
        assert await box.state("1") is State.WAITING

    async def test_a_claim_is_good_in_its_own_box_only(self, open_box: OpenBox) -> None:
        box, other = open_box(name="one"), open_box(name="two")
        await box.put(draft("1"))
        claimed = await box.take()
        assert await other.ack(claimed) == [False]
        assert await box.get("1") == claimed

    async def test_outcomes_of_all_kinds_in_one_call(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("stale"))
        [stale] = await box.claim()
        await elapse(LEASE)
        await box.put(*(draft(name) for name in ["done", "retry", "release", "dead"]))
        claims = {message.message_id: claim_of(message) for message in await box.claim()}
        results = await box.settle(
            Settlement.dead(claims["dead"], error="poison"),
            Settlement.done(claim_of(stale)),
            Settlement.done(claims["done"]),
            Settlement.release(claims["release"]),
            Settlement.retry(NamedTarget(ALICE, "unknown")),
            Settlement.retry(claims["retry"], delay=seconds(5), error="boom"),
        )
        assert results == [True, False, True, True, False, True]
        state = {message.message_id: (message.state, message.attempt) for message in await box.find()}
        assert state == {
            "stale": (State.CLAIMED, 0),
            "done": (State.DONE, 0),
            "retry": (State.WAITING, 1),
            "release": (State.WAITING, 0),
            "dead": (State.DEAD, 0),
        }

    async def test_an_ambiguous_id_is_refused_and_nothing_is_settled(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        await box.put(draft("1", source="a"), draft("1", source="b"), draft("2"))
        claimed = await box.claim()
        good = Settlement.done(claim_of(claimed[2]))
        with pytest.raises(AmbiguousMessageId):
            await box.settle(good, Settlement.dead(NamedTarget(ALICE, "1"), error="which?"), good)
        assert await box.find() == claimed

    async def test_an_id_is_ambiguous_though_one_only_is_claimed(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.finish(draft("1", source="a"))
        await box.put(draft("1", source="b"))
        await box.take()
        with pytest.raises(AmbiguousMessageId):
            await box.settle(Settlement.done(NamedTarget(ALICE, "1")))

    @each_verdict
    async def test_a_bare_id_names_what_its_owner_holds(
        self, open_box: OpenBox, verdict: Callable[[Claim | NamedTarget], Settlement]
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.take()
        assert await box.settle(verdict(NamedTarget(ALICE, "1"))) == [True]
        assert (await box.get("1")).claim is None
        assert await box.settle(verdict(NamedTarget(ALICE, "1"))) == [False]

    async def test_with_its_source_an_id_is_clear(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", source="a"), draft("1", source="b"))
        await box.claim()
        assert await box.settle(Settlement.done(NamedTarget(ALICE, "1", "b"))) == [True]
        assert [message.state for message in await box.find()] == [State.CLAIMED, State.DONE]

    async def test_a_bare_id_means_the_claim_that_holds_now(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        await box.take(owner=ALICE)
        await elapse(LEASE)
        await box.take(owner=BOB)
        assert await box.settle(Settlement.done(NamedTarget(ALICE, "1"))) == [False]
        assert await box.settle(Settlement.done(NamedTarget(BOB, "1"))) == [True]
        assert (await box.get("1")).completed_by == BOB

    async def test_the_end_that_a_claim_names_does_not_matter(self, open_box: OpenBox) -> None:
        """A renewal moves the end, and a handler may still have the old claim."""
        box = open_box()
        await box.put(draft("1"))
        claim = claim_of(await box.take())
        assert await box.settle(Settlement.done(claim._replace(until=claim.until - timedelta(days=1)))) == [True]
