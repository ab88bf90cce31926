"""The ETL on the page about joins, as the outbox document describes it: in async code, and with a sync producer."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from postroom import JoinStatus, Message, Outcome, OwnerToken, Postroom, StepStatus, sync
from tests.docs.pages import ROOT, Block, programs_in

PAGE = ROOT / "docs/how-to/join-messages.md"
PROGRAMS = programs_in(PAGE, PAGE.read_text("utf-8"))
STEPS = ["extract.customers", "extract.orders", "extract.products"]


def names_of(block: Block) -> dict[str, Any]:
    """What a block of the page defines. The sync producer is the function in front of the code that runs it."""
    names: dict[str, Any] = {}
    exec(block.code.partition("\n\n\nshop =")[0], names)
    return names


@pytest.fixture
def start_etl() -> Any:
    return names_of(PROGRAMS[0].blocks[0])["start_etl"]


@pytest.fixture
async def room() -> Any:
    async with Postroom("memory://") as room:
        yield room


def register(room: Postroom, *failing: str) -> list[tuple[str, Any]]:
    """Handlers for all topics. Returns the list of what they get."""
    handled: list[tuple[str, Any]] = []

    async def handle(message: Message[Any]) -> Outcome:
        handled.append((message.topic, message.payload))
        return Outcome.DEAD.because("broken") if message.topic in failing else Outcome.SUCCESS

    for topic in (*STEPS, "etl.transform"):
        room.outbox("etl").handler(topic)(handle)
    return handled


@pytest.mark.req("OBX-EX-04")
async def test_a_join_of_three_steps_is_started(room: Postroom, start_etl: Any) -> None:
    etl = room.outbox("etl")
    join = await etl.get_join(await start_etl(etl, 7))
    assert (join.tenant_id, join.expected_steps, join.attached_steps) == ("7", 3, 3)
    assert join.metadata is not None
    assert json.loads(join.metadata) == {"type": "etl", "phase": "extract"}
    steps = await etl.join_steps(join.id)
    assert [step.status for step in steps] == [StepStatus.PENDING] * 3
    assert [(await etl.get(step.message_id)).topic for step in steps if step.message_id] == STEPS


@pytest.mark.req("OBX-EX-05")
async def test_the_transformation_follows_all_extractions(room: Postroom, start_etl: Any) -> None:
    handled, etl = register(room), room.outbox("etl")
    join = await start_etl(etl, 7)
    await room.drain()
    assert sorted(topic for topic, _ in handled[:3]) == STEPS
    assert handled[3:] == [("etl.transform", {"customer": 7})]
    assert (await etl.get_join(join)).status is JoinStatus.COMPLETED


@pytest.mark.req("OBX-EX-05", "OBX-EX-06")
async def test_a_failed_extraction_fails_the_join(room: Postroom, start_etl: Any) -> None:
    handled, etl = register(room, "extract.orders"), room.outbox("etl")
    join = await etl.get_join(await start_etl(etl, 7))
    await room.drain()
    assert sorted(topic for topic, _ in handled) == STEPS
    join = await etl.get_join(join.id)
    assert (join.status, join.completed_steps, join.failed_steps) == (JoinStatus.FAILED, 2, 1)
    assert {letter.topic for letter in await etl.dead_letters()} == {"extract.orders", "join.wait"}


@pytest.mark.req("OBX-EX-06")
def test_the_handlers_of_the_page_have_no_code_for_joins() -> None:
    handlers = PROGRAMS[0].blocks[1].code
    assert all(f'@etl.handler("{topic}")' in handlers for topic in (*STEPS, "etl.transform"))
    assert "join" not in handlers
    names = names_of(PROGRAMS[0].blocks[0])
    exec(handlers, names)

    async def count_by_ack() -> None:
        join = await names["start_etl"](names["etl"], 7)
        await names["room"].drain()
        found = await names["etl"].get_join(join)
        assert (found.status, found.completed_steps, found.failed_steps) == (JoinStatus.COMPLETED, 3, 0)

    asyncio.run(count_by_ack())


@pytest.mark.req("OBX-EX-04", "OBX-EX-05")
def test_a_sync_producer_starts_it_in_its_transaction(tmp_path: Path) -> None:
    start_etl = names_of(PROGRAMS[2].blocks[0])["start_etl"]
    with sync.Postroom(f"sqlite:///{tmp_path}/shop.db", deploy_schema=True) as room:
        etl, worker = room.outbox("etl"), OwnerToken.new()
        assert etl.joins() == []
        db = sqlite3.connect(tmp_path / "shop.db")
        db.execute("CREATE TABLE runs (customer INTEGER)")
        for customer in (7, 8):
            db.execute("INSERT INTO runs VALUES (?)", (customer,))
            join = start_etl(etl, customer, db)
            if customer == 7:
                db.rollback()
                assert (etl.joins(), etl.find()) == ([], [])
        db.commit()
        db.close()
        steps = etl.claim(worker)
        assert [message.topic for message in steps] == STEPS
        etl.ack(worker, steps)
        [continuation] = etl.claim(worker)
        assert (continuation.topic, continuation.payload) == ("etl.transform", {"customer": 8})
        assert etl.get_join(join).status is JoinStatus.COMPLETED
