"""Order in a group after one of its messages dies: what is behind it is given back before the next exchange."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from typing import Any

import pytest

from postroom import Backoff, Message, NewMessage, Outcome, Postroom, State
from tests.scenarios.support import ids, put, states

COUNT = 20


@pytest.mark.parametrize("kind", ["batch", "topics"])
async def test_nothing_overtakes_what_is_given_back(room: Postroom, kind: str) -> None:
    box = room.outbox(order="fifo", max_attempts=1, batch_size=10)
    handled: list[int] = []

    async def one(message: Message[Any]) -> None:
        await asyncio.sleep(0.006)  # longer than the pump lets handlers run without an exchange
        if message.payload["n"] == 0:
            raise ValueError("poison")
        handled.append(message.payload["n"])

    async def many(messages: list[Message[Any]]) -> None:
        for message in messages:
            await one(message)

    if kind == "batch":
        box.handler("a", batch=4)(many)
    else:
        box.handler("a")(one)
        box.handler("b")(one)
    topics = "ab" if kind == "topics" else "aa"
    await box.enqueue_many([NewMessage(topics[n % 2], {"n": n}, group="g") for n in range(COUNT)])
    await room.drain()
    assert handled == list(range(1, COUNT))


@pytest.mark.parametrize("store", ["memory"])
class TestOddHandlers:
    """The runtime is the same on every store."""

    async def test_nothing_overtakes_an_undecodable_message_of_its_batch(self, still: Postroom) -> None:
        box = still.inbox(order="fifo", max_attempts=3, backoff=Backoff.constant(10))
        batches: list[list[str]] = []

        async def many(messages: list[Message[dict[str, Any]]]) -> None:
            batches.append(ids(messages))

        box.handler("t", batch=4)(many)
        payloads: list[Any] = [{}, "not a dict", {}, {}]
        await box.enqueue_many(
            NewMessage("t", payload, source="s", message_id=str(n), group="g") for n, payload in enumerate(payloads)
        )
        await still.drain()
        assert batches == [["0"]]
        assert {m.message_id: m.attempt for m in await box.find()} == {"0": 0, "1": 1, "2": 0, "3": 0}

    async def test_any_sequence_is_a_list_of_outcomes(self, still: Postroom) -> None:
        box = still.inbox()

        async def many(messages: list[Message[Any]]) -> deque[Outcome]:
            return deque([Outcome.SUCCESS, Outcome.DEAD])

        box.handler("t", batch=2)(many)
        await put(box, 1, 2)
        await still.drain()
        assert await states(box) == {"1": State.DONE, "2": State.DEAD}

    async def test_outcomes_that_raise_are_failures(self, still: Postroom) -> None:
        box = still.inbox(backoff=Backoff.constant(10))

        class Broken(list[Outcome]):
            def __iter__(self) -> Any:
                raise RuntimeError("broken")

        async def many(messages: list[Message[Any]]) -> list[Outcome]:
            return Broken([Outcome.SUCCESS, Outcome.SUCCESS])

        box.handler("t", batch=2)(many)
        await put(box, 1, 2)
        await still.drain()
        assert {m.attempt for m in await box.find()} == {1}

    async def test_a_circle_of_causes_ends(self, still: Postroom) -> None:
        box = still.inbox(backoff=Backoff.constant(10))
        cached = ValueError("cached")

        @box.handler("t")
        async def handle(message: Message[Any]) -> None:
            try:
                raise KeyError("other") from cached  # noqa: TRY301
            except KeyError as error:
                raise cached from error

        await put(box, 1)
        await still.drain()
        assert [m.attempt for m in await box.find()] == [1]

    @pytest.mark.parametrize("is_async", [True, False])
    async def test_a_handler_that_exits_has_failed(self, still: Postroom, *, is_async: bool) -> None:
        """Otherwise the message would end one worker after the other, without an attempt."""
        box = still.inbox(backoff=Backoff.constant(10))

        async def handle(message: Message[Any]) -> None:
            sys.exit(3)

        def handle_in_a_thread(message: Message[Any]) -> None:
            sys.exit(3)

        box.handler("t")(handle if is_async else handle_in_a_thread)
        await put(box, 1)
        await still.drain()
        assert [(m.attempt, m.last_error) for m in await box.find()] == [(1, "SystemExit: 3")]

    async def test_a_syntax_error_shows_no_line_of_a_payload(
        self, still: Postroom, caplog: pytest.LogCaptureFixture
    ) -> None:
        box = still.inbox(backoff=Backoff.constant(10))

        @box.handler("t")
        async def handle(message: Message[Any]) -> None:
            compile("".join(["sec", "ret = = 1"]), "payload", "exec")

        await put(box, 1)
        with caplog.at_level(logging.WARNING, "postroom"):
            await still.drain()
        assert "SyntaxError" in caplog.text
        assert "secret" not in caplog.text

    async def test_notes_that_are_none_and_long_chains_are_logged(
        self, still: Postroom, caplog: pytest.LogCaptureFixture
    ) -> None:
        box = still.inbox(backoff=Backoff.constant(10))

        @box.handler("t")
        async def handle(message: Message[Any]) -> None:
            error: Exception = ValueError("first\n")
            for _ in range(3000):
                outer = ValueError("next")
                outer.__cause__, error = error, outer
            error.__notes__ = None  # type: ignore[assignment]
            raise error

        await put(box, 1)
        with caplog.at_level(logging.WARNING, "postroom"):
            await still.drain()
        assert [m.attempt for m in await box.find()] == [1]


def test_a_new_message_shows_no_payload() -> None:
    assert "secret" not in repr(NewMessage("t", {"card": "secret"}, headers={"token": "secret"}))
