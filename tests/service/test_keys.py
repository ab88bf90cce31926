"""The routes of keys: outcomes are 200 with a status."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from postroom import Postroom
from tests.service.conftest import serving

Client = httpx2.AsyncClient


async def post(client: Client, verb: str, **body: Any) -> dict[str, Any]:
    response = await client.post(f"/v1/inbox/{verb}", json=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


async def report(client: Client, key: str) -> dict[str, Any]:
    response = await client.get("/v1/inbox", params={"key": key})
    reply: dict[str, Any] = response.json()
    return reply


@pytest.mark.req("KOAN-012", "KOAN-013", "KOAN-016", "KOAN-017", "KOAN-020", "KOAN-026")
async def test_the_first_caller_acquires_the_key(client: Client) -> None:
    begun = await post(client, "try-begin", key="orders:7", leaseSeconds=90)
    assert begun["status"] == "Acquired"
    assert begun["attempts"] == 1
    assert 80 < begun["leaseSeconds"] <= 90
    assert begun["expiresAt"].endswith("Z")
    assert begun["leaseId"]


@pytest.mark.req("KOAN-032")
async def test_the_service_bounds_leases() -> None:
    async with serving(max_lease_seconds=120) as client:
        assert 30 <= (await post(client, "try-begin", key="default"))["leaseSeconds"] <= 120
        lease = (await post(client, "try-begin", key="k", leaseSeconds=120))["leaseId"]
        for verb, body in (("try-begin", {"key": "long"}), ("renew", {"key": "k", "leaseId": lease})):
            response = await client.post(f"/v1/inbox/{verb}", json={**body, "leaseSeconds": 121})
            assert response.status_code == 400
            assert "120" in response.json()["detail"]
        assert (await report(client, "long"))["status"] == "Unknown"


@pytest.mark.req("KOAN-019", "C-04")
async def test_while_the_lease_holds_others_are_busy_and_not_processed(client: Client) -> None:
    await post(client, "try-begin", key="k")
    begun = await post(client, "try-begin", key="k")
    assert begun["status"] == "Busy"
    assert "leaseId" not in begun
    assert 0 < begun["leaseSeconds"] <= 60


@pytest.mark.req("KOAN-018", "KOAN-021")
async def test_a_processed_key_is_reported_with_its_result(client: Client) -> None:
    lease = (await post(client, "try-begin", key="k"))["leaseId"]
    assert await post(client, "mark-processed", key="k", leaseId=lease, result={"total": 3}) == {"status": "Processed"}
    begun = await post(client, "try-begin", key="k")
    assert begun == {"status": "Processed", "result": {"total": 3}, "resultEncoding": "json"}


async def test_bytes_travel_in_base64(client: Client) -> None:
    lease = (await post(client, "try-begin", key="k"))["leaseId"]
    await post(client, "mark-processed", key="k", leaseId=lease, result="AP8=", resultEncoding="base64")
    begun = await post(client, "try-begin", key="k")
    assert (begun["result"], begun["resultEncoding"]) == ("AP8=", "base64")


async def test_mark_processed_can_be_repeated(client: Client) -> None:
    lease = (await post(client, "try-begin", key="k"))["leaseId"]
    for _ in range(2):
        assert (await post(client, "mark-processed", key="k", leaseId=lease))["status"] == "Processed"


@pytest.mark.req("KOAN-022", "C-65")
async def test_a_released_key_can_be_acquired_again(client: Client) -> None:
    lease = (await post(client, "try-begin", key="k"))["leaseId"]
    assert await post(client, "release", key="k", leaseId=lease) == {"status": "Released"}
    begun = await post(client, "try-begin", key="k")
    assert (begun["status"], begun["attempts"]) == ("Acquired", 2)
    for verb in ("release", "mark-processed", "renew", "fail"):
        assert (await post(client, verb, key="k", leaseId=lease))["status"] == "LeaseLost"


async def test_a_lease_can_be_renewed(client: Client) -> None:
    lease = (await post(client, "try-begin", key="k", leaseSeconds=5))["leaseId"]
    assert (await post(client, "renew", key="k", leaseId=lease, leaseSeconds=100))["status"] == "Renewed"
    assert (await post(client, "try-begin", key="k"))["leaseSeconds"] > 50


async def test_a_failed_key_is_dead(client: Client) -> None:
    lease = (await post(client, "try-begin", key="k"))["leaseId"]
    assert await post(client, "fail", key="k", leaseId=lease, error="no such order") == {"status": "Dead"}
    assert (await post(client, "try-begin", key="k"))["status"] == "Dead"
    assert (await report(client, "k"))["status"] == "Dead"


async def test_another_content_is_a_conflict(client: Client) -> None:
    await post(client, "try-begin", key="k", hash="00" * 32)
    assert await post(client, "try-begin", key="k", hash="11" * 32) == {"status": "Conflict"}


@pytest.mark.req("KOAN-015")
async def test_a_repeated_call_of_one_execution_gets_the_same_lease(client: Client) -> None:
    owner = str(uuid4())
    first = await post(client, "try-begin", key="k", owner=owner)
    assert (await post(client, "try-begin", key="k", owner=owner))["leaseId"] == first["leaseId"]


@pytest.mark.req("KOAN-015")
async def test_a_name_is_no_execution(client: Client) -> None:
    await post(client, "try-begin", key="k", owner="host-1")
    assert (await post(client, "try-begin", key="k", owner="host-1"))["status"] == "Busy"


@pytest.mark.req("KOAN-023", "KOAN-024", "KOAN-025")
async def test_a_report(client: Client) -> None:
    unknown = dict.fromkeys(["firstSeen", "lastSeen", "leaseUntil", "processedAt"])
    assert await report(client, "k") == {"status": "Unknown", "attempts": 0, **unknown}
    lease = (await post(client, "try-begin", key="k"))["leaseId"]
    leased = await report(client, "k")
    assert (leased["status"], leased["attempts"]) == ("Leased", 1)
    assert leased["leaseUntil"] > leased["firstSeen"]
    await post(client, "release", key="k", leaseId=lease)
    assert (await report(client, "k"))["status"] == "Seen"
    lease = (await post(client, "try-begin", key="k"))["leaseId"]
    await post(client, "mark-processed", key="k", leaseId=lease)
    processed = await report(client, "k")
    assert (processed["status"], processed["attempts"], processed["leaseUntil"]) == ("Processed", 2, None)
    assert processed["processedAt"] is not None


@pytest.mark.req("C-13", "KOAN-023")
@pytest.mark.parametrize(
    "key", [".", "..", "a/b", "a/../b", "%2F", "é", "a b", "?x=1", "#", "k" * 255, "release", "a\nb"]
)
async def test_any_key_can_be_reported_by_its_path(client: Client, key: str) -> None:
    await post(client, "try-begin", key=key)
    path = "".join(f"%{byte:02X}" for byte in key.encode())
    by_path = (await client.get(f"/v1/inbox/{path}")).json()
    assert by_path["status"] == "Leased"
    assert by_path == await report(client, key)


async def test_fifty_callers_at_once(client: Client) -> None:
    begun = await asyncio.gather(*(post(client, "try-begin", key="k") for _ in range(50)))
    assert sorted(each["status"] for each in begun) == ["Acquired"] + ["Busy"] * 49


@pytest.mark.req("KOAN-027", "KOAN-028")
@pytest.mark.parametrize(("options", "hint"), [({}, "none"), ({"tokens": "shop=0123456789abcdef"}, "bearer")])
async def test_the_service_announces_how_to_authenticate(options: dict[str, str], hint: str) -> None:
    async with serving(**options) as client:
        response = await client.get("/v1")
    assert response.json()["auth"] == hint
    assert response.json()["protocols"] == ["v1"]
    assert "0123456789abcdef" not in response.text


async def test_messages_for_an_inbox(client: Client) -> None:
    one = {"topic": "order.placed", "payload": {"id": 1}, "source": "shop", "messageId": "1"}
    first = await client.post("/v1/inboxes/orders/messages", json=one)
    [receipt] = first.json()["receipts"]
    number = receipt.pop("id")
    assert isinstance(number, int)
    assert receipt == {"status": "new", "source": "shop", "messageId": "1", "state": "waiting"}
    both = await client.post("/v1/inboxes/orders/messages", json=[one, {**one, "messageId": "2"}])
    assert [each["status"] for each in both.json()["receipts"]] == ["duplicate", "new"]


async def test_messages_for_a_fifo_inbox(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/service.db"
    one = {"topic": "order.placed", "payload": 1, "source": "shop", "messageId": "1", "group": "7"}
    async with serving(url=url, fifo_inboxes="orders, invoices") as client:
        stored = await client.post("/v1/inboxes/orders/messages", json=one)
        assert stored.json()["receipts"][0]["status"] == "new"
    async with serving(url=url) as client:
        refused = await client.post("/v1/inboxes/orders/messages", json={**one, "messageId": "2"})
        assert (refused.status_code, "fifo_inboxes" in refused.text) == (400, True)
    async with Postroom(url) as room:
        assert [each.message_id for each in await room.inbox("orders", order="fifo").find()] == ["1"]


@pytest.mark.parametrize("path", ["inbox/%FF", "inbox?key=%FF"])
async def test_a_key_that_is_not_utf8(client: Client, path: str) -> None:
    assert (await client.get(f"/v1/{path}")).status_code == 400


async def test_a_name_of_an_inbox_that_is_not_utf8(client: Client) -> None:
    one = {"topic": "order.placed", "payload": 1, "source": "shop", "messageId": "1"}
    assert (await client.post("/v1/inboxes/%FF/messages", json=one)).status_code == 400
    stored = await client.post("/v1/inboxes/%EF%BF%BD/messages", json=one)
    assert stored.json()["receipts"][0]["status"] == "new"


async def test_a_key_that_ends_like_the_route(client: Client) -> None:
    await post(client, "try-begin", key="x/v1/inbox")
    assert (await client.get("/v1/inbox/x/v1/inbox")).json()["status"] == "Leased"
