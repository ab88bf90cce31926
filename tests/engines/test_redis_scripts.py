"""The scripts: which keys they touch, and that they survive whatever happens to a server's memory of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from uuid import uuid4

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import RedisServer

from postroom._kernel.program import Mode
from postroom._stores.redis.layout import KEYS
from postroom._stores.redis.scripts import script
from postroom.spi import (
    Box,
    ClaimRequest,
    Draft,
    Filter,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinWait,
    Purge,
    ReceiptStatus,
    Settlement,
    State,
    StepStatus,
)
from postroom.testing.conformance.base import ALICE, seconds
from tests.redis import new_prefix, open_at
from tests.runtime.support import soon
from tests.support import settled

BOX = Box("outbox", "box")
ASK = ClaimRequest(ALICE, seconds(30), 10)


@pytest.fixture(scope="module")
def private() -> Iterator[RedisServer]:
    try:
        server = RedisServer(appendonly=True, appendfsync="always")
    except ServerMissing as error:
        missing(str(error))
    with server:
        yield server


@pytest.fixture(params=["async", "sync"])
def store(request: pytest.FixtureRequest, private: RedisServer) -> Any:
    mode: Mode = request.param
    return open_at(private.url(), mode, prefix=new_prefix(of_shared_server=False))


async def use_every_script(store: Any, name: str) -> None:
    assert [r.status for r in await settled(store.put(BOX, [Draft("s", name)]))] == [ReceiptStatus.NEW]
    [message] = await settled(store.claim(BOX, ASK))
    assert await settled(store.renew(BOX, [message.claim], seconds(60))) == [True]
    assert await settled(store.settle(BOX, [Settlement.retry(message.claim)])) == [True]
    assert await settled(store.mark(BOX, [message.key], "dead", error="by hand")) == [True]
    assert await settled(store.replay(BOX, Filter())) == [message.key]
    [message] = (await settled(store.exchange(BOX, [], ASK)))[1]
    assert (await settled(store.exchange(BOX, [Settlement.done(message.claim)], ASK))) == ([True], [])
    assert [s.state for s in await settled(store.record(BOX, [Draft("s", name)]))] == [State.DONE]
    assert await settled(store.reap(BOX, 10)) == (0, 0)
    assert [m.state for m in await settled(store.find(BOX, Filter()))] == [State.DONE]
    assert (await settled(store.counts(BOX)))[State.DONE] == 1
    await use_every_script_of_joins(store, name)
    assert await settled(store.purge(BOX, Purge(State.DONE, seconds(0)))) == 3


async def use_every_script_of_joins(store: Any, name: str) -> None:
    join = uuid4()
    await settled(store.start_join(BOX, JoinDraft(join, "tenant")))
    [step] = await settled(store.put(BOX, [Draft("s", f"step-{name}")]))
    assert await settled(store.attach_steps(BOX, join, [step.id])) == [True]
    assert (await settled(store.put_wait(BOX, Draft("s", str(join)), JoinWait(join)))).is_new
    assert await settled(store.report_step(BOX, join, step.id, failed=False)) is True
    assert [found.status for found in await settled(store.find_steps(BOX, join))] == [StepStatus.COMPLETED]
    assert await settled(store.cancel(BOX, Filter(ids=(step.id,)))) == [step.key]
    assert await settled(store.seal_join(BOX, join)) is True
    assert await settled(store.cancel_join(BOX, join)) is True
    assert [found.status for found in await settled(store.find_joins(BOX, JoinFilter()))] == [JoinStatus.CANCELLED]


@pytest.mark.req("RHI-158")
async def test_scripts_are_sent_once_and_survive_a_flush(store: Any, private: RedisServer) -> None:
    await use_every_script(store, "1")
    before = private.info("commandstats")
    await use_every_script(store, "2")
    after = private.info("commandstats")
    assert after.get("cmdstat_eval") == before.get("cmdstat_eval"), "a script was sent again, though it was known"
    private.query("SCRIPT", "FLUSH")
    await use_every_script(store, "3")
    await settled(store.close())


async def test_a_store_goes_on_after_a_restart_of_its_server(store: Any, private: RedisServer) -> None:
    [receipt] = await settled(store.put(BOX, [Draft("s", "1", payload="kept")]))
    private.restart()

    async def claim() -> Any:
        while True:  # each lost connection is noticed once
            try:
                return await settled(store.claim(BOX, ASK))
            except Exception as error:
                if not store.is_transient(error):
                    raise

    [message] = await soon(claim())
    assert (message.id, message.payload) == (receipt.id, "kept")
    await settled(store.close())


# -- what the text says ----------------------------------------------------------------------------------------------

_CONSTANTS = {name.upper() for name in KEYS}
_SCRIPTS = sorted(
    entry.name.removesuffix(".lua")
    for entry in files("postroom._stores.redis.scripts").iterdir()
    if entry.name.endswith(".lua")
)


def test_the_layout_page_has_the_keys_in_the_order_of_scripts() -> None:
    layout = files("postroom._stores.redis").joinpath("layout.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", layout, re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == list(enumerate(KEYS, 1))


@pytest.mark.parametrize("verb", _SCRIPTS)
def test_every_key_that_a_script_touches_is_declared(verb: str) -> None:
    """A command's key is one of the constants, or a parameter that is given one of them."""
    text = script(verb).text
    commands = re.findall(r"\b(?:call|write|fetch)\('([A-Z]+)'(?:, ([\w.]+))?", text)
    assert commands
    touched = {key for command, key in commands if command != "TIME"}
    assert touched - _CONSTANTS <= {"key", "set"}
    assert text.count("KEYS[") == len(KEYS), "keys are taken once, at the beginning"
    assert not re.search(r"call\(command, (?!key\b)", text)
    given = set(re.findall(r"\b(?:members_with_prefix|delete)\((\w+)", text)) - {"key", "ids", "old"}
    assert given <= _CONSTANTS
    computed = set(re.findall(r"local set = (.*)", text))
    assert all(set(re.findall(r"\b[A-Z]{3,}\b", line)) <= _CONSTANTS for line in computed)


def test_a_script_has_only_functions_that_it_uses() -> None:
    """It creates its functions on every call."""
    text = script("exchange").text
    functions = re.findall(r"^local function (\w+)", text, re.MULTILINE)
    assert {"settle", "claim", "bury"} <= set(functions)
    assert "revive" not in functions  # `replay` uses it
    assert [name for name in functions if len(re.findall(rf"\b{name}\b", text)) == 1] == []


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "joined"])
async def test_contents_arrive_whether_or_not_the_script_joins_them(
    store: Any, separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents of many sizes: below, at and above the size of a joined string."""
    monkeypatch.setattr("postroom._stores.redis.codec.HIREDIS_AVAILABLE", separate)
    sizes = [0, 1, 100, *range(7900, 8010, 5), 9000, 50_000, *[300] * 100, 9000, 9000, 2]
    drafts = [Draft("s", str(number), payload="x" * size) for number, size in enumerate(sizes)]
    await settled(store.put(BOX, drafts))
    await settled(store.claim(BOX, ASK._replace(limit=3)))  # these have other records than the rest
    found = await settled(store.find(BOX, Filter(limit=1000)))
    assert [(message.message_id, len(message.payload)) for message in found] == [
        (draft.message_id, len(draft.payload)) for draft in drafts
    ]
    await settled(store.settle(BOX, [Settlement.retry(m.claim, delay=seconds(0)) for m in found if m.claim]))
    claimed = await settled(store.claim(BOX, ASK._replace(limit=1000)))
    assert {message.message_id: len(message.payload) for message in claimed} == {
        draft.message_id: len(draft.payload) for draft in drafts
    }
    assert {message.id: message.attempt for message in claimed} == {
        message.id: 1 if number < 3 else 0 for number, message in enumerate(found)
    }
    await settled(store.close())
