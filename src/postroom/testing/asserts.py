"""Assertions about what is in a box."""

from __future__ import annotations

import inspect
from typing import Any

from postroom._faces.drafts import MISSING
from postroom._kernel.message import AnyMessage


async def assert_enqueued(
    box: Any, topic: str, payload: Any = MISSING, *, count: int | None = None, **fields: Any
) -> list[AnyMessage]:
    """Assert that a box of either colour has messages like this, whatever became of them; answers them.

    `fields` are fields of a message: `source="stripe"`, `group="7"`. `count` is how many there must be; without it, at
    least one.
    """
    found = box.find(topic=topic, limit=100_000)
    messages: list[AnyMessage] = await found if inspect.isawaitable(found) else found
    fitting = [
        message
        for message in messages
        if (payload is MISSING or message.payload == payload)
        and all(getattr(message, name) == value for name, value in fields.items())
    ]
    enough = bool(fitting) if count is None else len(fitting) == count
    wanted = "one" if count is None else str(count)
    assert enough, f"wanted {wanted} like this in {box!r} on topic {topic!r}, found {len(fitting)} of {len(messages)}"
    return fitting


async def assert_not_enqueued(box: Any, topic: str, payload: Any = MISSING, **fields: Any) -> None:
    await assert_enqueued(box, topic, payload, count=0, **fields)
