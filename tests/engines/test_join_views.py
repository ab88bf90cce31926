"""The views postroom_outbox_join and postroom_outbox_join_member: every column, in every status."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from postroom import OwnerToken
from tests.engines.test_views import Shop, shop

__all__ = ["shop"]

WORKER = OwnerToken.new()
SECOND = timedelta(seconds=1)


def joins(shop: Shop) -> dict[UUID, dict[str, Any]]:
    return {UUID(str(row["join_id"])): row for row in shop.typed("SELECT * FROM postroom_outbox_join")}


def test_every_column_of_a_join_in_every_status(shop: Shop) -> None:
    outbox, clock = shop.room.outbox("etl"), shop.clock
    began = clock.now()
    names = ("pending", "completed", "failed", "cancelled", "open")
    ids = {name: outbox.start_join(7, None if name == "open" else 2, f'{{"is": "{name}"}}') for name in names}
    for name in ("completed", "failed"):
        outbox.enqueue_join_wait(ids[name], on_complete_topic="next", on_fail_topic="next")
    clock.advance(1)
    for name in names:
        for number in (1, 2):
            outbox.enqueue("step", {}, message_id=f"{name} {number}", join=ids[name])
    claimed = {message.message_id: message for message in outbox.claim(WORKER, 45)}
    clock.advance(1)
    outbox.ack(WORKER, [claimed[f"{name} 1"] for name in names] + [claimed["completed 2"]])
    outbox.fail(WORKER, [claimed["failed 2"], claimed["open 2"]], "broken")
    outbox.cancel_join(ids["cancelled"])
    assert [message.topic for message in outbox.claim(WORKER, 45)] == ["next", "next"]
    common = {"outbox_name": "etl", "tenant_id": "7", "expected_steps": 2, "completed_steps": 1, "failed_steps": 0}
    filled, ended = began + SECOND, began + 2 * SECOND
    expected: dict[str, dict[str, Any]] = {
        "pending": {"status": 0, "last_updated_utc": filled},
        "completed": {"status": 1, "completed_steps": 2, "last_updated_utc": ended},
        "failed": {"status": 2, "failed_steps": 1, "last_updated_utc": ended},
        "cancelled": {"status": 3, "last_updated_utc": ended},
        "open": {"status": 0, "expected_steps": None, "failed_steps": 1, "last_updated_utc": began},
    }
    rows = joins(shop)
    assert rows.keys() == set(ids.values())
    for name, id_ in ids.items():
        row = rows[id_] | {"join_id": UUID(str(rows[id_]["join_id"]))}
        metadata = f'{{"is": "{name}"}}'
        assert row == {"join_id": id_, "created_utc": began, "metadata": metadata, **common, **expected[name]}, name


def test_every_column_of_a_step_in_every_status(shop: Shop) -> None:
    outbox, clock = shop.room.outbox("etl"), shop.clock
    join = outbox.start_join("acme", 7)
    names = ("waiting", "held", "done", "dead", "cancelled", "reported done", "reported failed")
    receipts = {name: outbox.enqueue("step", {}, message_id=name) for name in names}
    clock.advance(1)
    attached = clock.now()
    for receipt in receipts.values():
        outbox.attach_message_to_join(join, receipt)
    outbox.cancel("cancelled")
    claimed = {message.message_id: message for message in outbox.claim(WORKER, 45)}
    clock.advance(1)
    outbox.ack(WORKER, [claimed["done"]])
    outbox.fail(WORKER, [claimed["dead"]], "broken")
    outbox.release(WORKER, [claimed["waiting"]])
    outbox.report_step_completed(join, "reported done")
    outbox.report_step_failed(join, "reported failed")
    statuses = dict(zip(names, (0, 0, 1, 2, 2, 1, 2), strict=True))
    rows = shop.typed("SELECT * FROM postroom_outbox_join_member ORDER BY outbox_message_id")
    assert [row | {"join_id": UUID(str(row["join_id"]))} for row in rows] == [
        {"join_id": join, "outbox_message_id": receipts[name].id, "status": statuses[name], "created_utc": attached}
        for name in names
    ]
    [row] = joins(shop).values()
    assert (row["completed_steps"], row["failed_steps"]) == (2, 3)
