"""The four behaviours: default, batched, FIFO and FIFO batched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom import Backoff, Message, NewMessage, Outcome, Postroom, State
from postroom.testing import Events, FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, always, ids, put, soon, state_of, states


class TestUnordered:
    @pytest.mark.req("RHI-001", "RHI-015")
    async def test_one_message_at_a_time(self, still: Postroom) -> None:
        box = still.inbox()
        got: list[Any] = []
        box.handler("a")(got.append)
        box.handler("b")(got.append)
        for number in range(6):
            await put(box, number, topic="ab"[number % 2], group="g")
        assert await still.drain() == 6
        assert sorted(ids(got)) == list("012345")
        assert [m.topic for m in got] == ["a"] * 3 + ["b"] * 3  # grouped by type

    @pytest.mark.req("RHI-015", "C-46")
    async def test_a_failure_delays_no_other_message(self, still: Postroom) -> None:
        box = still.inbox()
        box.handler("t")(lambda message: Outcome.FAILED if message.message_id == "1" else None)
        await put(box, 1, 2, 3, group="g")
        assert await still.drain() == 3
        assert await states(box) == {"1": State.WAITING, "2": State.DONE, "3": State.DONE}

    @pytest.mark.req("RHI-001", "RHI-016", "RHI-104")
    async def test_batches_of_one_topic(self, still: Postroom) -> None:
        box = still.inbox()
        batches: list[tuple[str, list[str]]] = []

        async def handle(messages: list[Message[str]]) -> None:
            assert isinstance(messages, list)
            assert len({message.topic for message in messages}) == 1
            batches.append((messages[0].topic, ids(messages)))

        box.handler("a", batch=3)(handle)
        box.handler("b", batch=100)(handle)
        await box.enqueue_many([NewMessage("ab"[n % 2], "x", source="s", message_id=str(n)) for n in range(14)])
        await still.drain()
        assert batches == [
            ("a", ["0", "2", "4"]),
            ("a", ["6", "8", "10"]),
            ("a", ["12"]),
            ("b", ["1", "3", "5", "7", "9", "11", "13"]),
        ]
        assert set((await states(box)).values()) == {State.DONE}

    async def test_a_batch_of_one_is_a_list(self, still: Postroom) -> None:
        box = still.inbox()
        got: list[Any] = []
        box.handler("t", batch=1)(got.append)
        await put(box, 1, 2)
        await still.drain()
        assert [ids(batch) for batch in got] == [["1"], ["2"]]


class TestFifo:
    @pytest.mark.req("RHI-001", "RHI-017", "RHI-105", "C-46")
    async def test_each_group_in_order_one_at_a_time(self, room: Postroom) -> None:
        for box in (room.inbox(order="fifo", concurrency=4), room.outbox(order="fifo", concurrency=4)):
            got: list[str] = []
            inside: set[str] = set()

            async def handle(message: Any, got: list[str] = got, inside: set[str] = inside) -> None:
                assert message.group not in inside
                inside.add(message.group)
                await asyncio.sleep(0)
                inside.remove(message.group)
                got.append(message.message_id)

            box.handler("a")(handle)
            box.handler("b")(handle)
            sent = [(group, number) for number in range(20) for group in "xyz"]
            await box.enqueue_many(
                [NewMessage("ab"[n % 2], "x", source="s", message_id=f"{g}{n}", group=g) for g, n in sent]
            )
            assert await soon(room.drain()) == 60
            for group in "xyz":
                assert [id_ for id_ in got if id_[0] == group] == [f"{group}{n}" for n in range(20)]

    @pytest.mark.req("RHI-017", "RHI-145", "C-46")
    async def test_a_failure_stops_the_group_and_gives_the_rest_back(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox(order="fifo", backoff=Backoff.constant(10))
        got: list[str] = []

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            got.append(message.message_id)
            if message.message_id == "2" and message.attempt < 2:
                raise ValueError

        await put(box, 1, 2, 3, 4, group="g")
        await put(box, "other", group="h")
        await still.drain()
        assert got == ["1", "2", "other"]
        found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
        assert found["2"] == (State.WAITING, 1)
        assert found["3"] == found["4"] == (State.WAITING, 0)
        for _ in range(2):
            clock.advance(10)
            await still.drain()
        assert got == ["1", "2", "other", "2", "2", "3", "4"]
        assert set((await states(box)).values()) == {State.DONE}

    @pytest.mark.req("C-46", "C-05")
    async def test_retry_stops_the_group_too(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox(order="fifo")
        outcomes: dict[str, list[Outcome | None]] = {"1": [Outcome.RETRY.after(HOUR), None], "2": [None]}
        got: list[str] = []

        @box.handler("t")
        async def handle(message: Message[str]) -> Outcome | None:
            got.append(message.message_id)
            return outcomes[message.message_id].pop(0)

        await put(box, 1, 2, group="g")
        await still.drain()
        assert got == ["1"]
        clock.advance(HOUR)
        await still.drain()
        assert got == ["1", "1", "2"]
        assert (await box.get("1")).attempt == 0

    @pytest.mark.req("C-46")
    async def test_a_dead_head_lets_its_group_go_on(self, still: Postroom) -> None:
        box = still.inbox(order="fifo")
        box.handler("t")(lambda message: Outcome.DEAD if message.message_id == "1" else None)
        await put(box, 1, 2, 3, group="g")
        await still.drain()
        assert await states(box) == {"1": State.DEAD, "2": State.DONE, "3": State.DONE}

    @pytest.mark.req("C-46")
    async def test_or_blocks_it_until_it_is_replayed(self, still: Postroom) -> None:
        box = still.inbox(order="fifo", on_dead="block")
        outcomes = iter([Outcome.DEAD, None, None, None])
        got: list[str] = []

        @box.handler("t")
        async def handle(message: Message[str]) -> Outcome | None:
            got.append(message.message_id)
            return next(outcomes)

        await put(box, 1, 2, 3, group="g")
        await still.drain()
        assert got == ["1"]
        assert await box.blocked_groups() == ["g"]
        await box.replay(group="g")
        await still.drain()
        assert got == ["1", "1", "2", "3"]

    async def test_what_has_no_group_has_no_order(self, still: Postroom, open_room: OpenRoom) -> None:
        """A failure among them releases no other message: a release would cost that message a delivery."""
        box = still.inbox(order="fifo", change_order=True, max_deliveries=2)
        writer = (await open_room()).inbox()  # of a process that has been running since before the box had an order
        box.handler("t")(lambda message: Outcome.FAILED if message.message_id == "1" else None)
        await put(writer, *range(10))
        assert await still.drain() == 10
        assert {m.deliveries for m in await box.find()} == {1}
        assert [id_ for id_, state in (await states(box)).items() if state is not State.DONE] == ["1"]

    async def test_groups_and_the_groupless_go_on_beside_each_other(self, room: Postroom, open_room: OpenRoom) -> None:
        box = room.inbox(order="fifo", change_order=True, concurrency=3)
        gate = Gate()
        box.handler("t")(gate)
        await put((await open_room()).inbox(), "free1", "free2")  # when the box had no order
        await put(box, "g1", "g2", group="g")
        draining = asyncio.ensure_future(room.drain())
        await gate.reached(3)
        assert sorted(ids(gate.entered)) == ["free1", "free2", "g1"]
        gate.open()
        await soon(draining)
        assert ids(gate.entered)[3:] == ["g2"]

    @pytest.mark.req("RHI-141", "RHI-166", "IBX-078")
    async def test_a_group_in_flight_is_not_claimed_by_another_worker(
        self, open_room: OpenRoom, events: Events
    ) -> None:
        first, second = await open_room(observers=[events]), await open_room()
        gate, got = Gate(), list[Any]()
        one = first.inbox(order="fifo", batch_size=2)
        two = second.inbox(order="fifo", batch_size=2)
        one.handler("t")(gate)
        two.handler("t")(got.append)
        await put(one, 1, 2, 3, group="g")
        await put(one, 4, group="h")
        await first.start()
        await gate.reached()
        claim = await events.wait("claim", lambda event: bool(event.result))
        assert ids(claim.result) == ["1", "2"]  # one worker captures several of a group
        await events.wait("claim", lambda event: ids(event.result) == ["4"])
        assert await second.drain() == 0
        gate.open()
        await events.wait("claim", lambda event: ids(event.result) == ["3"])
        await first.stop()
        await second.drain()
        assert set((await states(one)).values()) == {State.DONE}

    async def test_the_next_of_a_group_does_not_wait_for_a_poll(self, room: Postroom) -> None:
        """A group longer than a batch: when its batch is settled, the rest is claimed at once."""
        box = room.inbox(order="fifo", batch_size=3, poll_interval=HOUR)
        done = asyncio.Event()

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            await asyncio.sleep(0)
            if message.message_id == "19":
                done.set()

        await put(box, *range(20), group="g")
        await room.start()
        await soon(done.wait())

    async def test_successes_are_settled_while_their_line_goes_on(self, room: Postroom, events: Events) -> None:
        box = room.inbox(order="fifo", poll_interval=HOUR)
        gate = Gate()

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            if message.message_id == "2":
                await gate(message)

        await put(box, 1, 2, group="g")
        await room.start()
        await events.wait("settle")
        assert await states(box) == {"1": State.DONE, "2": State.CLAIMED}
        gate.open()


class TestFifoBatched:
    @pytest.mark.req("RHI-001", "RHI-018", "RHI-106", "RHI-166", "C-46")
    async def test_a_batch_is_one_groups_prefix_and_one_topic(self, still: Postroom) -> None:
        box = still.inbox(order="fifo")
        batches: list[tuple[str | None, str, list[str]]] = []

        async def handle(messages: list[Message[str]]) -> None:
            assert len({(message.group, message.topic) for message in messages}) == 1
            batches.append((messages[0].group, messages[0].topic, ids(messages)))

        box.handler("a", batch=3)(handle)
        box.handler("b", batch=10)(handle)
        topics = "aaaabba"
        await box.enqueue_many(
            [
                NewMessage(topics[n], "x", source="s", message_id=f"{group}{n}", group=group)
                for n in range(7)
                for group in "gh"
            ]
        )
        await still.drain()
        for group in "gh":
            assert [(topic, [id_[1:] for id_ in of]) for g, topic, of in batches if g == group] == [
                ("a", ["0", "1", "2"]),
                ("a", ["3"]),
                ("b", ["4", "5"]),
                ("a", ["6"]),
            ]

    @pytest.mark.req("RHI-018", "RHI-106", "RHI-108", "C-46")
    async def test_the_first_that_fails_ends_the_batch(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox(order="fifo", backoff=Backoff.constant(10))
        batches: list[list[str]] = []
        outcomes: list[Any] = [[None, Outcome.FAILED, None, Outcome.DEAD], None]

        @box.handler("t", batch=4)
        async def handle(messages: list[Message[str]]) -> Any:
            batches.append(ids(messages))
            return outcomes.pop(0) if outcomes else None

        await put(box, *range(6), group="g")
        await still.drain()
        found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
        assert batches == [["0", "1", "2", "3"]]
        assert found["0"] == (State.DONE, 0)
        assert found["1"] == (State.WAITING, 1)
        # What came behind is given back uncounted, whatever the handler said of it.
        assert all(found[str(n)] == (State.WAITING, 0) for n in range(2, 6))
        clock.advance(10)
        await still.drain()
        assert batches[1:] == [["1", "2", "3", "4"], ["5"]]
        assert set((await states(box)).values()) == {State.DONE}

    @pytest.mark.req("C-46", "C-11")
    async def test_an_undecodable_message_in_the_middle(self, still: Postroom) -> None:
        box = still.inbox(order="fifo", on_undecodable="dead")
        got: list[Any] = []

        @box.handler("t", batch=5)
        async def handle(messages: list[Message[int]]) -> None:
            got.append([message.payload for message in messages])

        for id_, payload in ((1, 1), (2, {"not": "an int"}), (3, 3)):
            await put(box, id_, payload=payload, group="g")
        await still.drain()
        assert await states(box) == {"1": State.DONE, "2": State.DEAD, "3": State.DONE}
        assert got[-1][-1] == 3

    async def test_order_in_a_group_under_random_outcomes(self, room: Postroom) -> None:
        """Every way of failing, at once and often: what succeeds does so in order."""
        box = room.inbox(
            order="fifo",
            backoff=Backoff.constant(0.001),
            concurrency=3,
            batch_size=7,
            max_attempts=1000,
            poll_interval=SOON,
            max_poll_interval=SOON,
        )
        done: dict[str, list[int]] = {}
        finished = asyncio.Event()
        outcomes = [None, Outcome.FAILED, None, Outcome.RETRY, None, None, Outcome.RETRY.after(SOON)]
        calls = 0

        @box.handler("t", batch=3)
        async def handle(messages: list[Message[int]]) -> list[Any]:
            nonlocal calls
            given = []
            for message in messages:
                calls += 1
                given.append(outcomes[(calls * 7 + message.payload * 3 + calls // 5) % len(outcomes)])
            good = next((i for i, outcome in enumerate(given) if outcome is not None), len(given))
            done.setdefault(str(messages[0].group), []).extend(m.payload for m in messages[:good])
            if sum(map(len, done.values())) == 90:
                finished.set()
            return given

        await box.enqueue_many(
            [NewMessage("t", n, source="s", message_id=f"{g}{n}", group=g) for n in range(30) for g in "abc"]
        )
        await room.start()
        await soon(finished.wait(), 30)
        await room.stop()
        assert done == {group: list(range(30)) for group in "abc"}
        assert set((await states(box)).values()) == {State.DONE}


@pytest.mark.req("RHI-020", "RHI-019")
async def test_one_service_writes_and_another_handles(open_room: OpenRoom) -> None:
    writer, worker = await open_room(), await open_room()
    await put(writer.inbox("orders"), 1)
    worker.inbox("orders").handler("t")(always())
    assert await writer.drain() == 0
    assert await worker.drain() == 1
    assert await state_of(writer.inbox("orders")) is State.DONE
