"""A dead letter that holds up its group: list, skip, or replay it in its place."""

from __future__ import annotations

from typing import Any

import pytest

from postroom import Key, OwnerToken, State
from tests.support import settled

OWNER = OwnerToken.new()


async def filled(room: Any) -> Any:
    """Group a: its first is dead and blocks. Group b goes on."""
    inbox = room.inbox("orders", order="fifo", on_dead="block")
    for message_id, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        await settled(inbox.enqueue("t", message_id, source="s", message_id=message_id, group=group))
    messages = await settled(inbox.claim(OWNER))
    by_id = {message.message_id: message for message in messages}
    await settled(inbox.fail(OWNER, [by_id["a1"]], "broken"))
    await settled(inbox.ack(OWNER, [by_id["b1"]]))
    return inbox


async def claimed(inbox: Any) -> list[str]:
    return [message.message_id for message in await settled(inbox.claim(OWNER))]


@pytest.mark.req("C-46")
async def test_a_blocked_group_is_listed_and_waits(room: Any) -> None:
    inbox = await filled(room)
    assert await settled(inbox.blocked_groups()) == ["a"]
    assert await claimed(inbox) == []


@pytest.mark.req("C-46")
async def test_skip_lets_the_group_go_on(room: Any) -> None:
    inbox = await filled(room)
    assert await settled(inbox.skip_blocked("a")) == [Key("s", "a1")]
    assert await settled(inbox.blocked_groups()) == []
    assert await settled(inbox.skip_blocked("a")) == []
    assert await settled(inbox.skip_blocked("unknown")) == []
    assert await claimed(inbox) == ["a2"]
    assert (await settled(inbox.get("a1"))).state is State.DEAD


@pytest.mark.req("C-46")
async def test_replay_takes_the_old_place(room: Any) -> None:
    inbox = await filled(room)
    assert await settled(inbox.replay(group="a")) == [Key("s", "a1")]
    assert await settled(inbox.blocked_groups()) == []
    assert await claimed(inbox) == ["a1", "a2"]


@pytest.mark.req("C-46")
async def test_where_the_dead_do_not_block_none_is_listed(room: Any) -> None:
    inbox = room.inbox("free", order="fifo")
    await settled(inbox.enqueue("t", "p", source="s", message_id="1", group="g"))
    await settled(inbox.mark_dead("1", "s"))
    assert await settled(inbox.blocked_groups()) == []
    assert await settled(inbox.skip_blocked("g")) == []


async def test_dead_letters_that_block_can_be_selected(room: Any) -> None:
    inbox = await filled(room)
    await settled(inbox.skip_blocked("a"))
    await settled(inbox.mark_dead("a2", "s"))
    blocking = await settled(inbox.dead_letters(blocking=True))
    assert [letter.message_id for letter in blocking] == ["a2"]
    assert len(await settled(inbox.dead_letters())) == 2
