"""`enqueue_dead`: a delivery that cannot be handled is kept as a dead letter, and no worker claims it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom import OwnerToken, ReceiptStatus, State, sync
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.testing import FrozenClock
from tests.support import STORES, open_room, settled

RAW = b"\x00\xffnot json"


async def put_dead(inbox: Any, message_id: str = "1", payload: object = RAW, **options: Any) -> Any:
    return await settled(
        inbox.enqueue_dead("t.undecodable", payload, source="s", message_id=message_id, error="not JSON", **options)
    )


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_dead_letter_has_the_raw_bytes_and_can_be_replayed(room: Any, order: str) -> None:
    inbox = room.inbox("dead", order=order)
    receipt = await put_dead(inbox, headers={"h": "v"}, hash=b"x")
    assert receipt.state is State.DEAD
    [letter] = await settled(inbox.dead_letters())
    assert (letter.payload, letter.topic, letter.last_error) == (RAW, "t.undecodable", "not JSON")
    assert (letter.source, letter.message_id, letter.headers, letter.hash) == ("s", "1", {"h": "v"}, b"x")
    owner = OwnerToken.new()
    assert await settled(inbox.claim(owner)) == []
    await settled(inbox.replay())
    [claimed] = await settled(inbox.claim(owner))
    assert claimed.payload == RAW


async def test_a_second_delivery_changes_nothing(room: Any) -> None:
    inbox = room.inbox()
    await put_dead(inbox)
    assert (await put_dead(inbox)).status is ReceiptStatus.DEAD
    assert (await settled(inbox.counts()))[State.DEAD] == 1


@pytest.mark.parametrize("state", [State.WAITING, State.CLAIMED, State.DONE])
async def test_a_known_message_is_not_changed(room: Any, state: State) -> None:
    inbox, owner = room.inbox(), OwnerToken.new()
    await settled(inbox.enqueue("t", "good", source="s", message_id="1"))
    if state is not State.WAITING:
        claimed = await settled(inbox.claim(owner))
    if state is State.DONE:
        await settled(inbox.ack(owner, claimed))
    receipt = await put_dead(inbox)
    assert receipt.state is state
    [message] = await settled(inbox.find())
    assert (message.state, message.payload) == (state, "good")


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("store", STORES)
async def test_a_call_that_fails_between_its_writes_leaves_nothing_to_claim_and_is_repaired_by_the_next(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    room = await open_room(store, tmp_path, FrozenClock())
    inbox = room.inbox()
    verb = ("mark", "put")[steps - 1]

    def fail(*_args: object, **_options: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(inbox, "_store", _Failing(inbox._store, verb, fail))
        with pytest.raises(ConnectionError):
            await put_dead(inbox)
    assert await settled(inbox.claim(OwnerToken.new())) == []
    assert (await put_dead(inbox)).state is State.DEAD
    [letter] = await settled(inbox.dead_letters())
    assert letter.payload == RAW
    await settled(room.close())


class _Failing:
    """A store of which one verb fails."""

    def __init__(self, inner: Any, verb: str, fail: Callable[..., None]) -> None:
        self._inner, self._verb, self._fail = inner, verb, fail

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._verb else getattr(self._inner, name)


async def test_a_box_that_discards_dead_letters_never_lets_a_worker_have_it(room: Any) -> None:
    inbox = room.inbox("discarding", dead_letter="discard")
    await put_dead(inbox)
    assert await settled(inbox.claim(OwnerToken.new())) == []


async def test_it_is_logged_without_its_content(room: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    await put_dead(room.inbox(), payload=b"secret content")
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "stored as dead: not JSON; dead letter" in record.getMessage()
    assert "secret" not in caplog.text


async def test_in_a_transaction_it_is_stored_with_the_commit(tmp_path: Path) -> None:
    with sync.Postroom(f"sqlite:///{tmp_path}/room.db") as room:
        room.migrate()
        inbox = room.inbox()
        with contextlib.closing(sqlite3.connect(tmp_path / "room.db", isolation_level=None)) as db:
            for end, count in (("ROLLBACK", 0), ("COMMIT", 1)):
                db.execute("BEGIN")
                inbox.enqueue_dead("t", RAW, source="s", message_id="1", error="not JSON", tx=db)
                db.execute(end)
                assert len(inbox.find()) == len(inbox.dead_letters()) == count


async def test_bad_arguments_are_refused(room: Any) -> None:
    inbox = room.inbox()
    with pytest.raises(ArgumentTypeError):
        await put_dead(inbox, payload=None)
    with pytest.raises(ArgumentValueError):
        await put_dead(inbox, message_id="x" * 256)
    wrong: Any = None
    with pytest.raises(ArgumentTypeError):
        await settled(inbox.enqueue_dead("t", "p", source="s", message_id="1", error=wrong))
    assert await settled(inbox.find()) == []
