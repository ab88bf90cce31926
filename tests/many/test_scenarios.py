"""The examples of both documents: tenants whose databases are discovered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroom import Message, State
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled
from tests.runtime.support import states


class TenantDirectory:
    """The application's list of tenants."""

    def __init__(self, urls: dict[str, str]) -> None:
        self._urls = urls

    async def __call__(self) -> dict[str, str]:
        return self._urls


@pytest.mark.req("IBX-EX-08", "IBX-API-35", "IBX-API-37")
async def test_setup_of_inboxes(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    room = open_room(discover=TenantDirectory(urls), refresh=timedelta(minutes=5), selection="round-robin")
    room.inbox().handler("payment.received")(handled)
    room.inbox().handler("order.created")(handled)
    async with room:
        for key in KEYS:
            await room.router.inbox(key).enqueue("payment.received", {}, source="bank", message_id=f"p-{key}")
            await room.router.inbox(key).enqueue("order.created", {}, source="shop", message_id=f"o-{key}")
        await handled.until(*((key, f"{kind}-{key}") for key in KEYS for kind in "po"))
    assert len(handled.seen) == 6


@pytest.mark.req("IBX-EX-09")
async def test_a_webhook_reaches_the_inbox_of_its_tenant(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled
) -> None:
    room = open_room(discover=TenantDirectory(urls))
    room.inbox().handler("invoice.paid")(handled)

    async def webhook(tenant: str, event_id: str, topic: str, payload: Any) -> bool:
        inbox = room.router.inbox(tenant)
        if await inbox.already_processed(event_id, "webhook"):
            return False
        await inbox.enqueue(topic, payload, source="webhook", message_id=event_id)
        return True

    await room.refresh()
    assert await webhook("bolt", "evt-1", "invoice.paid", {"amount": 7})
    await room.drain()
    assert not await webhook("bolt", "evt-1", "invoice.paid", {"amount": 7}), "a duplicate"
    assert await webhook("crow", "evt-1", "invoice.paid", {"amount": 7}), "of another tenant"
    assert [await states(room.router.inbox(key)) for key in ("acme", "bolt")] == [{}, {"evt-1": State.DONE}]
    with pytest.raises(LookupError):
        await webhook("nobody", "evt-1", "invoice.paid", {})


@pytest.mark.req("OBX-EX-02", "OBX-EX-03", "OBX-API-22", "OBX-API-24")
async def test_orders_are_published_by_the_outbox_of_their_tenant(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(discover=TenantDirectory(urls), refresh=timedelta(minutes=5), selection="round-robin")
    published: list[tuple[str, str, str | None]] = []

    @room.outbox().handler("order.created")
    async def publish(message: Message[Any]) -> None:
        published.append((message.store, message.payload["id"], message.correlation_id))

    await room.refresh()
    for tenant, order in (("acme", "17"), ("crow", "18")):
        await room.router.outbox(tenant).enqueue("order.created", {"id": order}, correlation_id=order)
    await room.drain()
    assert sorted(published) == [("acme", "17", "17"), ("crow", "18", "18")]
    assert await room.router.outbox("bolt").find() == []
