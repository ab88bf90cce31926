"""The `tx` argument of every verb that writes: not given, None, or SEPARATE."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

import postroom
from postroom import SEPARATE, NewMessage, OwnerToken, TransactionRefused
from tests.support import settled

OWNER = OwnerToken.new()
CALLS: dict[str, tuple[Any, ...]] = {
    "enqueue": ("t", {}),
    "enqueue_many": ([NewMessage("t", {}, "s", "2")],),
    "claim": (OWNER,),
    "ack": (OWNER, ["1"]),
    "abandon": (OWNER, ["1"]),
    "release": (OWNER, ["1"]),
    "fail": (OWNER, ["1"], "broken"),
    "replay": ([1],),
    "cancel": ([1],),
    "skip_blocked": ("g",),
    "already_processed": ("1", "s"),
    "mark_processing": ("1", "s"),
    "mark_processed": ("1", "s"),
    "mark_dead": ("1", "s"),
    "enqueue_dead": ("t", {}),
}
KEY = {
    "enqueue": {"source": "s", "message_id": "1"},
    "enqueue_dead": {"source": "s", "message_id": "1", "error": "broken"},
}


def test_every_verb_with_a_tx_is_in_this_test() -> None:
    with_tx = {
        name
        for name in dir(postroom.Inbox)
        if not name.startswith("_") and callable(value := getattr(postroom.Inbox, name))
        if "tx" in inspect.signature(value).parameters
    }
    assert with_tx == set(CALLS)


@pytest.mark.parametrize("verb", CALLS)
async def test_an_explicit_none_is_refused(room: Any, verb: str) -> None:
    """Django's `atomic() as tx` and asyncpg's `transaction() as tx` yield None: the write would commit alone."""
    box = room.inbox()
    with pytest.raises(TransactionRefused, match="pass the open connection"):
        await settled(getattr(box, verb)(*CALLS[verb], **KEY.get(verb, {}), tx=None))
    assert set((await settled(box.counts())).values()) <= {0}


@pytest.mark.parametrize("verb", ["enqueue_many", "ack", "replay", "cancel"])
async def test_none_is_refused_also_for_nothing(room: Any, verb: str) -> None:
    """A mistake is reported the first time that the code runs, not the first time that there is something to write."""
    given: tuple[Any, ...] = (OWNER, []) if verb == "ack" else ([],)
    with pytest.raises(TransactionRefused):
        await settled(getattr(room.inbox(), verb)(*given, tx=None))


@pytest.mark.parametrize("verb", CALLS)
async def test_separate_is_accepted_on_every_store(room: Any, verb: str) -> None:
    await settled(getattr(room.inbox(), verb)(*CALLS[verb], **KEY.get(verb, {}), tx=SEPARATE))


async def test_a_separate_write_commits_by_itself(room: Any) -> None:
    assert (await settled(room.outbox().enqueue("t", {}, message_id="1", tx=SEPARATE))).is_new
    assert (await settled(room.outbox().get("1"))).topic == "t"


def test_separate_is_one_object() -> None:
    assert copy.deepcopy(SEPARATE) is SEPARATE
    assert pickle.loads(pickle.dumps(SEPARATE)) is SEPARATE
    assert repr(SEPARATE) == "SEPARATE"
