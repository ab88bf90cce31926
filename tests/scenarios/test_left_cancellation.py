"""A handler that leaves a cancellation behind does not stop its worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom import Backoff, Postroom, State
from tests.scenarios.support import SOON, eventually, put

OPTIONS: Any = {"poll_interval": SOON, "max_poll_interval": SOON, "backoff": Backoff.constant(0.05)}


class Careless:
    """Its first call cancels the task in which it runs: at once, or a moment after it has returned."""

    def __init__(self, *, late: float | None) -> None:
        self.calls: list[str] = []
        self.cancelled = asyncio.Event()
        self._late = late

    async def __call__(self, given: Any, *_: Any) -> None:
        messages = given if isinstance(given, list) else [given]
        self.calls += [message.message_id for message in messages]
        if len(self.calls) > 1:
            return
        task = asyncio.current_task()
        assert task is not None
        if self._late is None:
            self._cancel(task)
        else:
            asyncio.get_running_loop().call_later(self._late, self._cancel, task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self.cancelled.set()


@pytest.mark.parametrize("late", [None, 0, 0.02], ids=["at once", "on return", "late timeout"])
@pytest.mark.parametrize("kind", ["plain", "batch", "transactional"])
async def test_later_messages_are_handled(room: Postroom, store: str, *, kind: str, late: float | None) -> None:
    if kind == "transactional" and not room.features.transactional:
        pytest.skip(f"{store} has no transactions")
    inbox = room.inbox(**OPTIONS)
    handler = Careless(late=late)

    async def handle(given: Any, *extra: Any) -> None:
        await handler(given, *extra)

    async def handle_in_transaction(given: Any, tx: Any) -> None:
        await handler(given)

    if kind == "transactional":
        inbox.handler("t", transactional=True)(handle_in_transaction)
    else:
        inbox.handler("t", batch=1 if kind == "batch" else None)(handle)
    await put(inbox, 1)
    await room.start()
    async with asyncio.timeout(3):
        await handler.cancelled.wait()
    await put(inbox, 2, 3)

    async def all_have_an_outcome() -> bool:
        found = await inbox.find()
        return all(message.state in {State.DONE, State.DEAD} for message in found)

    assert await eventually(all_have_an_outcome, 2), f"calls {handler.calls}, ready {await room.is_ready()}"
    assert {"2", "3"} <= set(handler.calls)
    assert await room.is_ready()


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_the_next_message_does_not_pay_for_it(room: Postroom, *, order: Any) -> None:
    inbox = room.inbox(order=order, **OPTIONS)
    calls: list[str] = []

    @inbox.handler("t")
    async def handle(message: Any) -> None:
        calls.append(message.message_id)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        if len(calls) == 1:
            task.cancel()

    await put(inbox, 1, 2, 3, group="g")
    await room.start()

    async def all_are_done() -> bool:
        return all(message.state is State.DONE for message in await inbox.find())

    assert await eventually(all_are_done, 2), f"calls {calls}, ready {await room.is_ready()}"
    assert [message.attempt for message in await inbox.find()][1:] == [0, 0]
