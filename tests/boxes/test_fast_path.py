"""Messages with a dict as payload and without options take a shorter way. It refuses what the longer way refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, NewMessage, PostroomError
from postroom.testing import FrozenClock
from tests.support import settled

GOOD = {"topic": "t", "source": "s", "message_id": "m"}
BAD = ["", "x" * 256, "a\x00b", "\x00", "\ud800", "ä" * 256, None, 7, b"bytes", True]


def _name(value: object) -> str:
    return ascii(value)[:20]


async def refusal(box: Any, payload: Any, fields: dict[str, Any]) -> str:
    """The error that a write gets; the write must have stored nothing."""
    with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
        await settled(box.enqueue(fields["topic"], payload, source=fields["source"], message_id=fields["message_id"]))
    assert isinstance(caught.value, PostroomError)
    assert sum((await settled(box.counts())).values()) == 0
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.req(
    "IBX-011", "IBX-012", "IBX-015", "IBX-016", "IBX-017", "IBX-020", "OBX-004", "OBX-107", "C-32", "C-63"
)  # fmt: skip
@pytest.mark.parametrize("field", GOOD)
@pytest.mark.parametrize("value", BAD, ids=_name)
async def test_an_inbox_refuses_a_bad_text_beside_a_dict_as_beside_a_text(room: Any, field: str, value: Any) -> None:
    box, fields = room.inbox(), {**GOOD, field: value}
    error = await refusal(box, {"id": 7}, fields)
    assert field in error
    assert error == await refusal(box, "text", fields)


@pytest.mark.req("OBX-004", "OBX-107", "C-32", "C-63")
@pytest.mark.parametrize("field", GOOD)
@pytest.mark.parametrize("value", [value for value in BAD if value is not None], ids=_name)
async def test_so_does_an_outbox(room: Any, field: str, value: Any) -> None:
    box, fields = room.outbox(), {**GOOD, field: value}
    error = await refusal(box, {"id": 7}, fields)
    assert field in error
    assert error == await refusal(box, "text", fields)


@pytest.mark.req("IBX-011", "IBX-012", "IBX-020", "OBX-107")
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
async def test_three_texts_of_255_characters_are_good(room: Any, kind: str) -> None:
    box = getattr(room, kind)()
    long = {field: letter * 255 for field, letter in zip(GOOD, "abc", strict=True)}
    await settled(
        box.enqueue(long["topic"], {"id": 7}, source=long["source"], message_id=long["message_id"]),
    )
    message = await settled(box.get(long["message_id"], long["source"]))
    assert (message.topic, message.source, message.message_id) == tuple(long.values())
    assert message.payload == {"id": 7}


@pytest.mark.req("IBX-011", "IBX-012", "IBX-020")
async def test_texts_that_are_not_ascii_come_back_as_they_were(room: Any) -> None:
    box = room.inbox()
    await settled(box.enqueue("bezahlt ✓", {"id": 7}, source="Müller", message_id="№ 1"))
    message = await settled(box.get("№ 1", "Müller"))
    assert (message.topic, message.source, message.message_id) == ("bezahlt ✓", "Müller", "№ 1")


@pytest.mark.req("C-63")
@pytest.mark.parametrize("value", ["", "x" * 256, "a\x00b", 7], ids=_name)
async def test_a_bad_group_is_refused(room: Any, value: Any) -> None:
    for payload in ({"id": 7}, "text"):
        with pytest.raises((ArgumentTypeError, ArgumentValueError), match="group"):
            await settled(room.outbox().enqueue("t", payload, group=value))
    assert sum((await settled(room.outbox().counts())).values()) == 0


@pytest.mark.req("RHI-115", "RHI-170")
async def test_a_fifo_box_refuses_a_dict_without_a_group(room: Any) -> None:
    box = room.inbox("moves", order="fifo")
    with pytest.raises(ArgumentValueError, match="FIFO"):
        await settled(box.enqueue("t", {"id": 7}, source="s", message_id="m"))


@pytest.mark.req("IBX-014", "IBX-102", "OBX-091")
@pytest.mark.parametrize("field", GOOD)
async def test_one_bad_message_of_many_writes_none(room: Any, field: str) -> None:
    for kind in ("inbox", "outbox"):
        box = getattr(room, kind)()
        good = NewMessage("t", {"id": 7}, source="s", message_id="good")
        fields: dict[str, Any] = {**GOOD, field: ""}
        bad = NewMessage(payload={"id": 7}, **fields)
        with pytest.raises(ArgumentValueError, match=field):
            await settled(box.enqueue_many([good, bad]))
        assert sum((await settled(box.counts())).values()) == 0


@pytest.mark.req("C-57")
async def test_the_lifetime_of_a_box_holds_for_a_dict(room: Any, clock: FrozenClock) -> None:
    box = room.inbox("short", lifetime=timedelta(seconds=5))
    await settled(box.enqueue("t", {"id": 7}, source="s", message_id="m"))
    assert (await settled(box.get("m"))).expires == clock.now() + timedelta(seconds=5)


@pytest.mark.req("C-16")
async def test_on_duplicate_of_a_box_holds_for_a_dict(room: Any) -> None:
    box = room.inbox("first", on_duplicate="reject")
    await settled(box.enqueue("t", {"id": 7}, source="s", message_id="m"))
    assert not (await settled(box.enqueue("t", {"id": 8}, source="s", message_id="m"))).updated
    assert (await settled(box.get("m"))).payload == {"id": 7}
