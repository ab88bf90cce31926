"""`postroom join`, and the joins in `postroom status`."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroom.cli import status
from postroom.cli.session import ChosenStore, Session
from tests.cli.conftest import Run, RunEach, output_of
from tests.cli.shop import ESCAPE, SECRET, write_module

MODULE = """\
import asyncio
from datetime import UTC, datetime
from uuid import UUID

from postroom import OwnerToken, Postroom
from postroom.spi import JoinDraft

room = Postroom("{url}")
etl = room.outbox("etl")
orders = room.inbox("orders")


async def fill():
    await room.migrate()
    owner, steps = OwnerToken.new(), {{1: 3, 2: None, 3: 2, 4: 1}}
    for number, expected in steps.items():
        tenant = "acme" if number < 4 else {escape!r}
        deadline = datetime(2200, 1, 1, tzinfo=UTC) if number == 1 else None
        draft = JoinDraft(UUID(int=number), tenant, expected, '{{"card":\\n "{secret}"}}', deadline)
        await room.store.start_join(etl.box, draft)
    for number, name in ((3, "good"), (3, "bad"), (1, "customers"), (1, {escape!r})):
        await etl.enqueue("extract", {{"card": "{secret}"}}, message_id=name, join=UUID(int=number))
    await etl.ack(owner, await etl.claim(owner, batch_size=1))
    await etl.cancel("bad")
    await etl.enqueue_join_wait(UUID(int=3), on_fail_topic="failed")
    await etl.enqueue_join_wait(UUID(int=1), on_complete_topic="loaded")
    await etl.claim(owner, topics=["failed"])  # ends the join
    await etl.cancel_join(UUID(int=4))


if room.store.name == "memory":
    asyncio.run(fill())
"""

PENDING, OPEN, FAILED, CANCELLED, UNKNOWN = (str(UUID(int=number)) for number in range(1, 6))
ETL = ("--room", "shop:room", "--outbox", "etl")


@pytest.fixture(params=["memory", "sqlite"], autouse=True)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Four joins in the outbox `etl`: pending, open, failed and cancelled. In memory, each command makes them anew."""
    url = "memory://" if request.param == "memory" else "sqlite:///shop.db"
    write_module(tmp_path, MODULE.format(url=url, secret=SECRET, escape=ESCAPE))
    monkeypatch.chdir(tmp_path)
    if request.param == "sqlite":
        asyncio.run(runpy.run_path("shop.py")["fill"]())
    return url


def ids(ran: Any) -> list[str]:
    return [join["id"] for join in output_of(ran)["joins"]]


def test_list_filters_and_pages(run_each: RunEach) -> None:
    listing = ("join", "list", *ETL, "--json")
    whole, tenant, failed, two, page, text, text_page, none = run_each(
        listing,
        (*listing, "--tenant", "acme"),
        (*listing, "--status", "failed"),
        (*listing, "--status", "pending", "--status", "cancelled"),
        (*listing, "--limit", "2"),
        ("join", "list", *ETL),
        ("join", "list", *ETL, "--limit", "1"),
        ("join", "list", *ETL, "--tenant", "unknown"),
    )
    assert ids(whole) == [PENDING, OPEN, FAILED, CANCELLED]
    assert (output_of(whole)["box"], output_of(whole)["next"]) == ("outbox:etl", None)
    assert ids(tenant) == [PENDING, OPEN, FAILED]
    assert ids(failed) == [FAILED]
    assert ids(two) == [PENDING, OPEN, CANCELLED]
    assert ids(page) == [PENDING, OPEN]
    following = output_of(page)["next"]
    assert following == output_of(page)["joins"][1]["number"]
    assert ids(run_each((*listing, "--after", str(following)))[0]) == [FAILED, CANCELLED]
    assert SECRET not in whole.stdout + text.stdout  # metadata may be long and private
    first, second, third, fourth = zip(*[iter(text.stdout.splitlines())] * 2, strict=True)
    assert first[0] == f"{PENDING}  pending, 0 of 3 steps ended"
    assert first[1].startswith("    tenant acme, started 2")
    assert first[1].endswith(" UTC, deadline 2200-01-01 00:00:00 UTC")
    assert second[0] == f"{OPEN}  pending, 0 of 0 steps ended, not sealed"
    assert third[0] == f"{FAILED}  failed, 2 of 2 steps ended, 1 failed"
    assert "tenant \\x1b[31mred" in fourth[1]  # printed, not interpreted
    assert text_page.stdout.splitlines()[2].startswith("there may be more: --after ")
    assert (none.returncode, none.stdout) == (0, "there are none\n")


def test_show_prints_the_join_and_its_steps(run_each: RunEach) -> None:
    showing = ("join", "show", FAILED, *ETL)
    text, json, page, escaped, empty, empty_json, unknown, wrong = run_each(
        showing,
        (*showing, "--json"),
        (*showing, "--limit", "1", "--json"),
        ("join", "show", PENDING, *ETL),
        ("join", "show", OPEN, *ETL),
        ("join", "show", OPEN, *ETL, "--json"),
        ("join", "show", UNKNOWN, *ETL),
        ("join", "show", "7", *ETL),
    )
    shown = text.stdout.splitlines()
    assert shown[:4] == [f"id               {FAILED}", "tenant_id        acme", "status           failed", shown[3]]
    assert shown[-6:-4] == ['metadata         {"card":', f'                  "{SECRET}"}}']
    found = output_of(json)
    continuation = found["continuation"]
    assert (continuation["state"], continuation["topic"]) == ("claimed", "failed")
    assert shown[-4:-2] == [f"continuation     claimed  {continuation['id']}  topic failed", "steps"]
    assert [line.split()[0] for line in shown[-2:]] == ["completed", "failed"]
    assert shown[-1].endswith("  bad from etl")
    assert (found["id"], found["completed_steps"], found["failed_steps"]) == (FAILED, 1, 1)
    assert found["metadata"] == f'{{"card":\n "{SECRET}"}}'
    steps = [(step["source"], step["message_id"], step["status"]) for step in found["steps"]]
    assert steps == [("etl", "good", "completed"), ("etl", "bad", "failed")]
    assert found["next"] is None
    assert [step["message_id"] for step in output_of(page)["steps"]] == ["good"]
    [rest] = run_each((*showing, "--after", str(output_of(page)["next"]), "--json"))
    assert [step["message_id"] for step in output_of(rest)["steps"]] == ["bad"]
    assert "\\x1b[31mred" in escaped.stdout
    [waiting] = [line for line in escaped.stdout.splitlines() if line.startswith("continuation ")]
    assert waiting.startswith("continuation     waiting  ")
    assert waiting.endswith("  topic join.wait")
    assert empty.stdout.splitlines()[-2:] == ["continuation     there is none", "steps            there are none"]
    assert output_of(empty_json)["continuation"] is None
    assert (unknown.returncode, unknown.stderr) == (1, f"postroom: there is no join {UNKNOWN} in outbox 'etl'\n")
    assert wrong.returncode == 2


def test_cancel_asks_and_leaves_alone_what_has_ended(run: Run, run_each: RunEach, url: str) -> None:
    cancelling = ("join", "cancel", PENDING, *ETL)
    refused, unasked, failed, failed_json, unknown = run_each(
        cancelling,  # not confirmed
        (*cancelling, "--json"),
        ("join", "cancel", FAILED, *ETL, "--yes"),
        ("join", "cancel", FAILED, *ETL, "--yes", "--json"),
        ("join", "cancel", UNKNOWN, *ETL, "--yes"),
    )
    assert refused.returncode == 1
    assert refused.stdout.startswith(f"{PENDING}  pending, 0 of 3 steps ended\n    tenant acme")
    assert "cancel this join of outbox 'etl'? its continuation is then never sent [y/N]" in refused.stderr
    assert (unasked.returncode, "--json does not ask: add --yes" in unasked.stderr) == (2, True)
    assert failed.stdout == "the join is failed and left alone\n"
    assert output_of(failed_json) == {"box": "outbox:etl", "id": FAILED, "cancelled": False, "status": "failed"}
    assert (unknown.returncode, unknown.stderr) == (1, f"postroom: there is no join {UNKNOWN} in outbox 'etl'\n")
    assert run(*cancelling, stdin="y\n").stdout.endswith("cancelled\n")
    [json] = run_each(("join", "cancel", OPEN, *ETL, "--yes", "--json"))
    assert output_of(json) == {"box": "outbox:etl", "id": OPEN, "cancelled": True, "status": "cancelled"}
    if url != "memory://":
        [left] = run_each(("join", "list", *ETL, "--status", "pending", "--json"))
        assert ids(left) == []


def test_status_counts_pending_and_failed_joins(run_each: RunEach) -> None:
    json, table, inbox = run_each(
        ("status", "shop:room", "--json"), ("status", "shop:room"), ("status", "shop:room", "--inbox", "orders")
    )
    boxes = {box["kind"]: box for box in output_of(json)["boxes"]}
    assert boxes["outbox"]["joins"] == {"pending": 2, "failed": 1}
    assert "joins" not in boxes["inbox"]
    [header] = [line for line in table.stdout.splitlines() if "waiting" in line]
    assert [name.strip() for name in header.split("┃")][-3:-1] == ["pending joins", "failed joins"]
    [outbox] = [line for line in table.stdout.splitlines() if "etl" in line]
    assert [number.strip() for number in outbox.split("│")][-3:-1] == ["2", "1"]
    assert "joins" not in inbox.stdout


def test_status_counts_joins_in_pages(run_each: RunEach, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    if url != "memory://":
        pytest.skip("the pages are the same on every store")
    monkeypatch.setattr(status, "PAGE", 1)

    async def count(store: ChosenStore) -> dict[str, int]:
        return await status.count_joins(await store.outbox("etl"))

    with Session(runpy.run_path("shop.py")["room"], is_declared=True) as session:
        assert session.each(count) == [(None, {"pending joins": 2, "failed joins": 1})]


def test_the_outbox_is_the_default_one_or_named(run_each: RunEach) -> None:
    unnamed, unknown = run_each(
        ("join", "list", "--room", "shop:room"), ("join", "list", "--room", "shop:room", "--outbox", "mail")
    )
    assert unnamed.stderr == "postroom: the room has no outbox 'outbox'; it has outbox 'etl', inbox 'orders'\n"
    assert unknown.stderr == "postroom: the room has no outbox 'mail'; it has outbox 'etl', inbox 'orders'\n"
