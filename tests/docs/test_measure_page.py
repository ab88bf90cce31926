"""The page about metrics lists every event that an observer can get."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from postroom import Message, OwnerToken, Postroom, State
from postroom._stores.observed import OBSERVED
from postroom.testing import Events
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs/how-to/measure-and-alert.md").read_text("utf-8")


def listed() -> set[str]:
    [table] = re.findall(r"^\| `event\.verb` \|.*\n\S+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return {verb for row in table.splitlines() for verb in re.findall(r"`(\w+)`", row.split("|")[1])}


async def lose_a_lease(room: Postroom, events: Events) -> None:
    box = room.inbox("lost", lease_seconds=0.1)

    @box.handler("t")
    async def handle(message: Message[Any]) -> None:
        await box.mark_dead(message.message_id, message.source)  # ends the lease
        await events.wait("renew", lambda event: event.result == [False])

    await box.enqueue("t", {}, source="s", message_id="1")
    await box.start()
    await events.wait("lost")
    await box.stop()


async def call_join_verbs(room: Postroom) -> None:
    outbox = room.outbox()
    join = await outbox.start_join("acme")
    receipt = await outbox.enqueue("t", {})
    await outbox.attach_message_to_join(join, receipt)
    await outbox.report_step_completed(join, receipt)
    await outbox.enqueue_join_wait(join)
    await outbox.seal_join(join)
    await outbox.get_join(join)
    await outbox.join_steps(join)
    await outbox.cancel_join(join)


async def test_every_event_is_listed() -> None:
    events, worker = Events(), OwnerToken.new()
    async with Postroom("memory://", observers=[events]) as room:
        box = room.inbox()
        await box.enqueue("t", {}, source="s", message_id="1")
        claimed = await box.claim(worker)
        await box.renew(worker, claimed)
        await box.reap()
        await box.get("1")
        await box.fail(worker, claimed, "no")
        await box.replay()
        await box.cancel(topic="t")
        await box.already_processed("2", "s")
        await box.mark_processed("2", "s")
        await box.purge(State.DONE, older_than=timedelta(0))
        await box.counts()
        await call_join_verbs(room)
        await room.guard("orders").try_begin("1")
        await lose_a_lease(room, events)
    assert {event.verb for event in events.seen} == listed()


def test_the_observer_in_the_test_sees_every_verb_of_the_store() -> None:
    """So that a new verb of the store cannot be forgotten above."""
    assert OBSERVED | {"handle", "lost"} == listed()
