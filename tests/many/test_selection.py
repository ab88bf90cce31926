"""Selection: which store has the next batch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from postroom import (
    ArgumentTypeError,
    ArgumentValueError,
    Batch,
    DrainFirst,
    Fair,
    Message,
    Postroom,
    RoundRobin,
    Selection,
    StoreConfig,
)
from postroom.testing import Events
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, databases, runs_of
from tests.runtime.support import Logged, put


async def filled(room: Postroom, kind: str, **counts: int) -> None:
    for key, count in counts.items():
        await put(getattr(room.router, kind)(key), *range(count))


def box_of(room: Postroom, kind: str, **options: Any) -> Any:
    return room.inbox(**options) if kind == "inbox" else room.outbox(**options)


@pytest.mark.parametrize("kind", ["inbox", "outbox"])
class TestOrder:
    """One handler at a time, so that the order of the batches can be seen."""

    @pytest.mark.req("IBX-086", "IBX-087", "OBX-061", "OBX-062", "C-60")
    async def test_round_robin(self, open_room: OpenRoom, urls: dict[str, str], handled: Handled, kind: str) -> None:
        """All stores in order, one batch each; a store that has no more is left out."""
        room = open_room(urls)  # it is the default
        box_of(room, kind, batch_size=2).handler("t")(handled)
        await filled(room, kind, acme=6, bolt=2, crow=4)
        assert await room.drain() == 12
        assert runs_of(handled.stores) == [
            *[("acme", 2), ("bolt", 2), ("crow", 2)],
            *[("acme", 2), ("crow", 2)],
            ("acme", 2),
        ]

    @pytest.mark.req("IBX-086", "IBX-088", "OBX-061", "OBX-063", "C-60")
    async def test_drain_first(self, open_room: OpenRoom, urls: dict[str, str], handled: Handled, kind: str) -> None:
        room = open_room(urls, selection="drain-first")
        box_of(room, kind, batch_size=2).handler("t")(handled)
        await filled(room, kind, acme=6, bolt=2, crow=4)
        assert await room.drain() == 12
        assert runs_of(handled.stores) == [("acme", 6), ("bolt", 2), ("crow", 4)]

    @pytest.mark.req("C-60")
    async def test_drain_first_with_a_limit(
        self, open_room: OpenRoom, urls: dict[str, str], handled: Handled, kind: str
    ) -> None:
        room = open_room(urls, selection=DrainFirst(max_batches=2))
        box_of(room, kind, batch_size=2).handler("t")(handled)
        await filled(room, kind, acme=6, bolt=2, crow=4)
        assert await room.drain() == 12
        assert runs_of(handled.stores) == [("acme", 4), ("bolt", 2), ("crow", 4), ("acme", 2)]

    @pytest.mark.req("IBX-086", "IBX-API-37", "OBX-061", "OBX-API-24")
    async def test_a_strategy_of_the_user(
        self, open_room: OpenRoom, urls: dict[str, str], handled: Handled, kind: str
    ) -> None:
        room = open_room(urls, selection=LastFirst())
        box_of(room, kind, batch_size=4).handler("t")(handled)
        await filled(room, kind, acme=4, bolt=4, crow=4)
        assert await room.drain() == 12
        assert runs_of(handled.stores) == [("crow", 4), ("bolt", 4), ("acme", 4)]


class LastFirst(Selection):
    """The store with the last name, one message at a time."""

    def select(self, ready: Collection[str]) -> str | None:
        return max(ready)

    def limit(self, store: str, batch_size: int) -> int:
        return 1


@pytest.mark.req("IBX-087", "IBX-088", "OBX-062", "OBX-063")
@pytest.mark.parametrize("selection", ["round-robin", "drain-first"])
async def test_while_the_room_runs(open_room: OpenRoom, urls: dict[str, str], handled: Handled, selection: str) -> None:
    room = open_room(urls, selection=selection)
    go_on = asyncio.Event()

    @room.inbox(batch_size=2).handler("t")
    async def handle(message: Message[Any]) -> None:
        handled.note(message)
        await go_on.wait()

    await filled(room, "inbox", acme=2, bolt=6, crow=6)
    async with room:
        await handled.until(("acme", "0"))  # it is in hand while the others become ready
        await put(room.router.inbox("bolt"), "6")
        await put(room.router.inbox("crow"), "6")
        go_on.set()
        await handled.until(*((key, str(number)) for key in ("bolt", "crow") for number in range(7)))
    runs = [run for run in runs_of(handled.stores) if run[0] != "acme"]
    if selection == "round-robin":
        assert runs[:4] == [("bolt", 2), ("crow", 2), ("bolt", 2), ("crow", 2)]
    else:
        assert runs == [("bolt", 7), ("crow", 7)]


async def test_a_busy_store_does_not_delay_a_quiet_one(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled
) -> None:
    room = open_room(urls, selection="fair")

    @room.inbox(batch_size=50).handler("t")
    async def handle(message: Message[Any]) -> None:
        handled.note(message)
        if message.message_id == "20":
            await put(room.router.inbox("bolt"), "quick")
        await asyncio.sleep(0.002)

    await filled(room, "inbox", acme=200)
    async with room:
        await handled.until(("bolt", "quick"))
    assert handled.stores.index("bolt") < 100, "it did not wait for all messages of the other"


class TestFair:
    def test_the_least_handler_time_is_first(self) -> None:
        fair = Fair()
        assert fair.select(["a", "b"]) == "a"
        fair.ended(Batch("a", 5, 0.5))
        assert fair.select(["b", "a"]) == "b"
        fair.ended(Batch("b", 5, 0.1))
        assert fair.select(["a", "b"]) == "b"
        fair.ended(Batch("b", 5, 0.5))
        assert fair.select(["b", "a"]) == "a"

    def test_weights(self) -> None:
        """Time is shared as the weights are."""
        fair, spent = Fair(), {"a": 0.0, "b": 0.0}
        for _ in range(400):
            chosen = fair.select(["a", "b"])
            assert chosen is not None
            spent[chosen] += 0.1
            fair.ended(Batch(chosen, 10, 0.1, weight=3.0 if chosen == "a" else 1.0))
        assert spent["a"] / spent["b"] == pytest.approx(3.0, rel=0.05)

    def test_an_idle_store_saves_no_time(self) -> None:
        fair = Fair()
        for _ in range(100):
            assert fair.select(["a"]) == "a"
            fair.ended(Batch("a", 10, 1.0))
        turns = []
        for _ in range(10):
            chosen = fair.select(["a", "b"])
            assert chosen is not None
            turns.append(chosen)
            fair.ended(Batch(chosen, 10, 1.0))
        assert turns.count("b") <= 6

    def test_a_batch_is_as_large_as_the_time_allows(self) -> None:
        fair = Fair()
        assert fair.limit("a", 50) == 50
        fair.ended(Batch("a", 10, 1.0))
        assert fair.limit("a", 50) == 1
        for _ in range(100):
            fair.ended(Batch("a", 50, 0.05))
        assert 15 <= fair.limit("a", 50) <= 25
        assert fair.limit("a", 3) == 3

    async def test_weights_in_a_room(self, open_room: OpenRoom, tmp_path: Path, handled: Handled) -> None:
        urls = databases("sqlite", tmp_path)
        room = open_room(
            {"acme": StoreConfig(urls["acme"], weight=4), "bolt": StoreConfig(urls["bolt"], weight=1)},
            selection="fair",
        )

        @room.inbox(batch_size=5).handler("t")
        async def handle(message: Message[Any]) -> None:
            handled.note(message)
            await asyncio.sleep(0.005)

        await filled(room, "inbox", acme=120, bolt=120)
        await room.drain()
        first = handled.stores[: handled.stores.index("acme") + 100]
        assert first.count("acme") > 2 * first.count("bolt")


class Bad(Selection):
    """Returns, or raises, what it should not."""

    def __init__(self, verb: str, result: object) -> None:
        self._verb = verb
        self._result = result

    def _or(self, verb: str, good: Any) -> Any:
        if verb != self._verb:
            return good
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def select(self, ready: Collection[str]) -> str | None:
        result: str | None = self._or("select", next(iter(ready)))
        return result

    def limit(self, store: str, batch_size: int) -> int:
        result: int = self._or("limit", batch_size)
        return result

    def ended(self, batch: Batch) -> None:
        self._or("ended", None)


@pytest.mark.req("IBX-API-37", "OBX-API-24")
@pytest.mark.parametrize(
    ("verb", "result"),
    [
        ("select", "nobody"),
        ("select", 7),
        ("select", ["acme"]),
        ("select", KeyError("x")),
        ("limit", 0),
        ("limit", -5),
        ("limit", 10_000),
        ("limit", "many"),
        ("limit", None),
        ("limit", KeyError("x")),
        ("ended", KeyError("x")),
    ],
    ids=str,
)
async def test_a_bad_strategy_loses_nothing(
    open_room: OpenRoom, tmp_path: Path, handled: Handled, verb: str, result: object
) -> None:
    room = open_room(databases("sqlite", tmp_path), selection=Bad(verb, result))
    room.inbox(batch_size=2).handler("t")(handled)
    await filled(room, "inbox", acme=5, bolt=5, crow=5)
    with Logged() as logged:
        async with room:
            await handled.until(*((key, str(number)) for key in KEYS for number in range(5)))
    assert len(handled.seen) == 15
    records = [record for record in logged.records if record.levelname in {"ERROR", "WARNING"}]
    assert [record.message for record in records if "selection" not in record.message] == []
    if verb != "limit" or not isinstance(result, int):
        assert len(records) == 1, "it is said once"


class Shy(Selection):
    """Returns no store in its first calls."""

    def __init__(self) -> None:
        self.calls = 0

    def select(self, ready: Collection[str]) -> str | None:
        self.calls += 1
        return None if self.calls < 4 else next(iter(ready))


async def test_a_strategy_that_selects_none_is_asked_again(
    open_room: OpenRoom, tmp_path: Path, handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom._many.dispatcher.ASK_AGAIN_SECONDS", 0.01)
    room = open_room(databases("sqlite", tmp_path, ["acme"]), selection=Shy(), notify=False)
    room.inbox().handler("t")(handled)
    await put(room.router.inbox("acme"), "1")
    async with room:
        await handled.until(("acme", "1"))


async def test_each_box_has_its_own_strategy(
    open_room: OpenRoom, tmp_path: Path, handled: Handled, events: Events
) -> None:
    """An object with a state is copied."""
    room = open_room(databases("sqlite", tmp_path), selection=DrainFirst())
    room.inbox(batch_size=2).handler("t")(handled)
    room.outbox(batch_size=2).handler("t")(handled)
    for kind in ("inbox", "outbox"):
        await filled(room, kind, acme=4, bolt=4)
    assert await room.drain() == 16
    assert runs_of(handled.stores) == [("acme", 4), ("bolt", 4), ("acme", 4), ("bolt", 4)]


@pytest.mark.parametrize(
    ("selection", "error", "text"),
    [
        ("random", ArgumentValueError, "'round-robin', 'drain-first', 'fair'"),
        (7, ArgumentTypeError, "selection must be"),
        (RoundRobin, ArgumentTypeError, "selection must be"),
        (None, ArgumentTypeError, "selection must be"),
    ],
)
def test_an_unknown_strategy(selection: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Postroom(stores={"a": "memory://"}, selection=selection)


def test_a_bad_limit_of_drain_first() -> None:
    with pytest.raises(ArgumentValueError, match="max_batches"):
        DrainFirst(max_batches=0)
