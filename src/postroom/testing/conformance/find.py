"""The verbs `find` and `counts`."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.spi import Box, Draft, State
from postroom.testing.conformance.base import SOURCE, BoxKind, BoxUnderTest, Elapse, OpenBox, Suite, draft, names


async def one_of_each(box: BoxUnderTest) -> None:
    await box.finish(draft("done"))
    await box.bury(draft("dead"))
    await box.put(draft("claimed"))
    await box.take()
    await box.put(draft("waiting"))
    await box.store.record(box.box, [Draft(SOURCE, "seen")])


class FindConformance(Suite):
    """`find` and `counts`."""

    async def test_messages_come_in_id_order(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(*(draft(name) for name in ["c", "a", "b"]))
        await box.finish(draft("a"), draft("b"), draft("c"))
        found = await box.find()
        assert names(found) == ["c", "a", "b"]
        assert [message.id for message in found] == sorted(message.id for message in found)

    async def test_pages_follow_each_other(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(*(draft(str(n)) for n in range(7)))
        after, pages = 0, []
        while page := await box.find(after=after, limit=3):
            pages.append(names(page))
            after = page[-1].id
        assert pages == [["0", "1", "2"], ["3", "4", "5"], ["6"]]

    @pytest.mark.parametrize("state", list(State))
    async def test_by_state(self, open_box: OpenBox, state: State) -> None:
        box = open_box()
        await one_of_each(box)
        found = await box.find(states=frozenset({state}))
        assert [(message.message_id, message.state) for message in found] == [(state.value, state)]

    async def test_by_several_states(self, open_box: OpenBox) -> None:
        box = open_box()
        await one_of_each(box)
        assert names(await box.find(states=frozenset({State.DEAD, State.SEEN, State.WAITING}))) == [
            "dead",
            "waiting",
            "seen",
        ]
        assert await box.find(states=frozenset()) == []

    @pytest.mark.parametrize("state", [State.WAITING, State.DEAD])
    async def test_by_fields(self, open_box: OpenBox, state: State) -> None:
        box = open_box()
        drafts = [
            draft("1", topic="t"),
            draft("2", source="s"),
            draft("3"),
            draft("4", group="g"),
            draft("5", correlation_id="c"),
            draft("6", topic="t", group="g", correlation_id="c"),
        ]
        await (box.bury(*drafts) if state is State.DEAD else box.put(*drafts))
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"topic": "t"}, ["1", "6"]),
            ({"topic": "T"}, []),
            ({"topic": "t", "limit": 1}, ["1"]),
            ({"source": "s"}, ["2"]),
            ({"message_id": "3"}, ["3"]),
            ({"message_id": "2", "source": "s"}, ["2"]),
            ({"message_id": "2", "source": SOURCE}, []),
            ({"message_id": "6", "topic": "t"}, ["6"]),
            ({"message_id": "6", "group": "other"}, []),
            ({"group": "g"}, ["4", "6"]),
            ({"correlation_id": "c"}, ["5", "6"]),
            ({"topic": "t", "group": "g", "correlation_id": "c"}, ["6"]),
        ]
        for fields, expected in cases:
            assert names(await box.find(**fields)) == expected, fields
            assert names(await box.find(**fields, states=frozenset({state}))) == expected, fields
            assert names(await box.find(**fields, states=frozenset({State.CLAIMED, State.DONE}))) == [], fields

    async def test_by_ids(self, open_box: OpenBox) -> None:
        box, other = open_box(), open_box(name="other")
        receipts = await box.put(*(draft(str(n)) for n in range(5)))
        [foreign] = await other.put(draft("foreign"))
        ids = (receipts[3].id, receipts[1].id, receipts[3].id, foreign.id, receipts[4].id + 1000)
        assert names(await box.find(ids=ids)) == ["1", "3"]
        assert names(await box.find(ids=ids, after=receipts[1].id)) == ["3"]
        assert names(await box.find(ids=ids, limit=1)) == ["1"]
        assert names(await box.find(ids=ids, states=frozenset({State.DEAD}))) == []
        assert await box.find(ids=()) == []

    async def test_many_fit_one_message_id(self, open_box: OpenBox) -> None:
        box = open_box()
        receipts = await box.put(*(draft("1", source=str(n)) for n in range(5)))
        assert len(await box.find(message_id="1")) == 5
        page = await box.find(message_id="1", after=receipts[1].id, limit=2)
        assert [message.id for message in page] == [receipts[2].id, receipts[3].id]

    async def test_looking_changes_nothing(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await one_of_each(box)
        before = await box.find()
        await elapse(10_000)
        await box.counts()
        assert await box.find() == before

    async def test_counts_name_every_state(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        assert dict(await box.counts()) == dict.fromkeys(State, 0)
        await one_of_each(box)
        await box.put(draft("waiting-2"))
        assert dict(await box.counts()) == dict.fromkeys(State, 1) | {State.WAITING: 2}

    async def test_a_box_that_was_never_used_is_empty(self, open_box: OpenBox) -> None:
        box = open_box(name="never-used")
        assert await box.find() == []
        assert sum((await box.counts()).values()) == 0

    async def test_messages_survive_another_box_object(self, open_box: OpenBox) -> None:
        """A box is identified by its kind and name, not by the object."""
        box = open_box(name="same")
        await box.put(draft("1"))
        again = BoxUnderTest(box.store, Box("inbox", "same"))
        assert names(await again.claim()) == ["1"]
