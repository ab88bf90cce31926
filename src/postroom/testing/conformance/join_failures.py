"""Joins whose steps fail, are replayed, or end without being handled."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import JoinNotFound
from postroom.spi import Ending, Filter, JoinFilter, JoinStatus, Key, Purge, Retention, State, StepStatus, Store
from postroom.testing.conformance.base import LEASE, SOURCE, Elapse, Now, OpenBox, needs, seconds
from postroom.testing.conformance.join_base import DONE, FAILED, JoinSuite, JoinsUnderTest


class JoinFailureConformance(JoinSuite):
    """How the end of a message ends a step, and a failed step the join."""

    async def test_a_failed_step_fails_the_join(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(3)
        await joins.put(join, *"123")
        await joins.wait(join)
        claimed = await joins.claim()
        await joins.of.fail(claimed["2"])
        assert await joins.counts(join) == (JoinStatus.PENDING, 0, 1)
        assert await joins.claim() == {}
        await joins.of.ack(claimed["1"], claimed["3"])
        assert await joins.counts(join) == (JoinStatus.FAILED, 2, 1)
        [continuation] = (await joins.claim()).values()
        assert (continuation.topic, continuation.payload, continuation.format) == FAILED

    async def test_a_failed_step_does_not_matter(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join, fails=False)
        assert await joins.run(failing=("2",)) == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 1, 1)

    async def test_a_step_that_is_tried_again_is_pending(self, joins: JoinsUnderTest, elapse: Elapse) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [first] = (await joins.claim()).values()
        await joins.of.retry(first, delay=seconds(0))
        [second] = (await joins.claim()).values()
        await joins.of.release(second)
        [third] = (await joins.claim()).values()
        await elapse(LEASE + 1)
        [fourth] = (await joins.claim()).values()
        assert await joins.of.ack(third) == [False]
        assert await joins.counts(join) == (JoinStatus.PENDING, 0, 0)
        await joins.of.ack(fourth)
        assert await joins.run() == [DONE.topic]

    async def test_completed_without_a_follow_up(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join, on_complete=None)
        assert await joins.run() == []
        continuation = await joins.of.get(str(join))
        assert (continuation.state, continuation.ending) == (State.DONE, Ending.JOINED)
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 1, 0)

    async def test_failed_without_a_follow_up(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join, on_fail=None)
        assert await joins.run(failing=("1",)) == []
        continuation = await joins.of.get(str(join))
        assert (continuation.state, continuation.attempt) == (State.DEAD, 0)
        assert continuation.last_error == "the join failed: 1 of 2 steps failed"
        assert await joins.counts(join) == (JoinStatus.FAILED, 1, 1)

    async def test_a_failed_join_is_replayed(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join, on_fail=None)
        await joins.run(failing=("1",))
        replayed = await joins.store.replay(joins.box, Filter(states=frozenset({State.DEAD})))
        assert {key.message_id for key in replayed} == {"1", str(join)}
        assert await joins.run() == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 2, 0)

    async def test_replay_of_a_step_while_the_join_is_pending(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join)
        claimed = await joins.claim()
        await joins.of.fail(claimed["1"])
        assert await joins.claim() == {}
        await joins.store.replay(joins.box, Filter(states=frozenset({State.DEAD})))
        assert await joins.steps(join) == {"1": StepStatus.PENDING, "2": StepStatus.PENDING}
        await joins.of.ack(claimed["2"])
        assert await joins.counts(join) == (JoinStatus.PENDING, 1, 0)
        assert await joins.run() == [DONE.topic]

    async def test_replay_of_a_step_after_the_end(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.run(failing=("1",)) == [FAILED.topic]
        await joins.store.replay(joins.box, Filter(states=frozenset({State.DEAD})))
        assert await joins.run() == []
        assert await joins.counts(join) == (JoinStatus.FAILED, 0, 1)

    # -- other ends of a step --------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("mark", "follows"), [("processed", DONE.topic), ("dead", FAILED.topic)])
    async def test_a_marked_step(self, joins: JoinsUnderTest, mark: Any, follows: str) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [_] = (await joins.claim()).values()
        await joins.store.mark(joins.box, [Key(SOURCE, "1")], mark)
        assert await joins.run() == [follows]

    async def test_a_cancelled_step_has_failed(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.claim("none") == {}
        await joins.store.cancel(joins.box, Filter(keys=(Key(SOURCE, "1"),)))
        assert await joins.steps(join) == {"1": StepStatus.FAILED}
        assert await joins.run() == [FAILED.topic]

    async def test_an_expired_step_has_failed(self, joins: JoinsUnderTest, now: Now, elapse: Elapse) -> None:
        join = await joins.start(1)
        await joins.put(join, "1", expires=await now() + seconds(10))
        await joins.wait(join)
        assert await joins.claim("none") == {}
        await elapse(11)
        assert await joins.run() == [FAILED.topic]

    async def test_a_discarded_step_has_failed(self, store: Store, open_box: OpenBox) -> None:
        needs(store.features.joins, "joins")
        joins = JoinsUnderTest(open_box("outbox", retention=Retention(dead_letter="discard")))
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.run(failing=("1",)) == [FAILED.topic]

    async def test_a_step_whose_content_is_erased(self, store: Store, open_box: OpenBox) -> None:
        needs(store.features.joins, "joins")
        joins = JoinsUnderTest(open_box("outbox", retention=Retention(on_success="delete")))
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join)
        assert await joins.run() == [DONE.topic]

    async def test_a_newer_message_takes_the_place_of_a_step(self, joins: JoinsUnderTest) -> None:
        needs(joins.of.store.features.collapse, "collapse")
        join = await joins.start(1)
        await joins.put(join, "old", collapse_key="k")
        await joins.wait(join)
        assert await joins.claim("none") == {}
        await joins.put(None, "new", collapse_key="k")
        assert await joins.steps(join) == {"new": StepStatus.PENDING}
        assert await joins.claim("none") == {}
        assert await joins.run() == [DONE.topic]

    async def test_a_newer_step_of_the_same_join(self, joins: JoinsUnderTest) -> None:
        needs(joins.of.store.features.collapse, "collapse")
        join = await joins.start(2)
        await joins.put(join, "a", collapse_key="c")
        await joins.put(join, "b", collapse_key="c")
        assert await joins.steps(join) == {"a": StepStatus.COMPLETED, "b": StepStatus.PENDING}
        await joins.wait(join)
        assert await joins.claim("none") == {}
        assert await joins.run() == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 2, 0)

    async def test_purged_steps_keep_their_status(self, joins: JoinsUnderTest, elapse: Elapse) -> None:
        join = await joins.start(3)
        await joins.put(join, "done", "dead")
        await joins.wait(join, fails=False)
        await joins.run(failing=("dead",))
        await elapse(10)
        for state in (State.DONE, State.DEAD):
            assert await joins.store.purge(joins.box, Purge(state, seconds(1))) == 1
        assert await joins.counts(join) == (JoinStatus.PENDING, 1, 1)
        assert list(await joins.steps(join)) == [None]
        await joins.put(join, "last")
        assert await joins.run() == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 2, 1)

    async def test_ended_joins_are_purged(self, joins: JoinsUnderTest, elapse: Elapse) -> None:
        ended, pending = await joins.start(1), await joins.start(1)
        await joins.put(ended, "1")
        await joins.wait(ended)
        await joins.run()
        await elapse(10)
        await joins.store.purge(joins.box, Purge(State.DONE, seconds(60)))
        assert (await joins.get(ended)).status is JoinStatus.COMPLETED
        await elapse(60)
        while await joins.store.purge(joins.box, Purge(State.DONE, seconds(60))):
            pass
        assert [join.id for join in await joins.store.find_joins(joins.box, JoinFilter())] == [pending]
        with pytest.raises(JoinNotFound):
            await joins.store.find_steps(joins.box, ended)
