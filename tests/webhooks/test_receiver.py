"""Receivers on every store, sync and async: what is stored, and which status a sender gets."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import OwnerToken, State, StorageRetry, sync
from postroom.cloudevents import CloudEvent, from_message, to_batch, to_binary, to_structured
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.webhooks import (
    CloudEvents,
    Delivery,
    GitHub,
    Headers,
    Receiver,
    Scheme,
    Slack,
    StandardWebhooks,
    Stripe,
    SyncReceiver,
    sign,
)
from tests.support import STORES, open_room, settled
from tests.webhooks.signing import NOW, PROVIDERS, SECRET, Provider, github, slack, standard, stripe

BODY = PROVIDERS[0].body


@pytest.fixture(params=STORES)
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    room = await open_room(request.param, tmp_path)
    yield room
    await settled(room.close())


def receiver_for(inbox: Any, scheme: Scheme, **options: Any) -> Any:
    kind: Any = SyncReceiver if isinstance(inbox, sync.Inbox) else Receiver
    return kind(inbox, scheme, clock=lambda: NOW, **options)


async def post(inbox: Any, scheme: Scheme, headers: Any, body: bytes, **options: Any) -> int:
    response = await settled(receiver_for(inbox, scheme, **options).receive(headers, body))
    assert isinstance(response.status, int)
    return int(response.status)


async def stored(inbox: Any) -> list[Any]:
    found: list[Any] = await settled(inbox.find())
    return found


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
async def test_a_delivery_is_stored_once(room: Any, provider: Provider) -> None:
    inbox = room.inbox()
    for _ in range(2):
        assert await post(inbox, provider.make(), provider.sign(provider.body), provider.body) == 200
    [message] = await stored(inbox)
    assert (message.source, message.message_id, message.topic) == (
        provider.name.replace("standard", "webhook"),
        provider.id,
        provider.topic,
    )
    assert message.payload == json.loads(provider.body)
    assert (message.state, message.revision) == (State.WAITING, 0)
    assert message.hash == hashlib.sha256(provider.body).digest()


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
async def test_a_bad_signature_gets_401_and_a_warning(
    room: Any, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = room.inbox()
    caplog.clear()
    assert await post(inbox, provider.make(), provider.sign(provider.body, secret="whsec_AAAA"), provider.body) == 401
    assert await post(inbox, provider.make(), {}, provider.body) == 401
    logged = [record for record in caplog.records if record.name == "postroom.webhooks"]
    assert [record.levelname for record in logged] == ["WARNING", "WARNING"]
    assert await stored(inbox) == []


@pytest.mark.parametrize(
    "body", [b"{", b"\xff\x00", b"{}", b'{"id": "evt_1"}', b'{"id": "%s", "type": "t"}' % (b"x" * 256)]
)
async def test_what_is_well_signed_and_cannot_be_a_message_is_a_dead_letter_with_its_bytes(
    room: Any, body: bytes
) -> None:
    inbox = room.inbox()
    for _ in range(2):
        assert await post(inbox, Stripe(SECRET), stripe(body), body) == 200
    [letter] = await settled(inbox.dead_letters())
    assert (letter.payload, letter.source) == (body, "stripe")
    assert letter.message_id == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert letter.last_error
    assert await settled(inbox.claim(OwnerToken.new())) == []


async def test_a_number_that_json_cannot_have_makes_a_dead_letter_and_a_large_one_is_kept(room: Any) -> None:
    inbox = room.inbox()
    for id_, number in (("e1", "1e999"), ("e2", "1" + "0" * 40)):
        body = f'{{"id": "{id_}", "type": "t", "n": {number}}}'.encode()
        assert await post(inbox, Stripe(SECRET), stripe(body), body) == 200
    dead, good = await stored(inbox)
    assert (dead.state, good.state) == (State.DEAD, State.WAITING)
    assert good.payload["n"] == 10**40


async def test_an_undecodable_delivery_never_replaces_a_good_message(room: Any) -> None:
    inbox = room.inbox()
    good = b'{"type": "user.created"}'
    assert await post(inbox, StandardWebhooks(SECRET), standard(good), good) == 200
    assert await post(inbox, StandardWebhooks(SECRET), standard(b"{"), b"{") == 200  # the same webhook-id
    assert sorted(message.state for message in await stored(inbox)) == sorted([State.WAITING, State.DEAD])


async def test_github_a_known_delivery_id_with_another_body_changes_nothing(room: Any) -> None:
    """The id is not signed: an old body can be sent again under any id."""
    inbox = room.inbox()
    first, other = b'{"ref": "main"}', b'{"ref": "other"}'
    assert await post(inbox, GitHub(SECRET), github(first), first) == 200
    assert await post(inbox, GitHub(SECRET), github(other), other) == 200
    [message] = await stored(inbox)
    assert (message.payload, message.revision) == ({"ref": "main"}, 0)


async def test_github_with_the_body_as_the_key_a_replay_under_another_id_is_known(room: Any) -> None:
    inbox = room.inbox()
    for id_ in ("d-1", "d-2"):
        headers = {**github(b'{"ref": "main"}'), "X-GitHub-Delivery": id_}
        assert await post(inbox, GitHub(SECRET), headers, b'{"ref": "main"}', key="body") == 200
    [message] = await stored(inbox)
    assert message.message_id == hashlib.sha256(b'{"ref": "main"}').hexdigest()


async def test_with_the_body_as_the_key_a_batch_loses_no_event(room: Any) -> None:
    inbox = room.inbox()
    headers, body = to_batch(EVENTS)
    for _ in range(2):
        assert await post(inbox, CloudEvents(signed_by=None), headers, body, key="body") == 200
    assert [message.payload["n"] for message in await stored(inbox)] == [0, 1, 2]


async def test_a_scheme_or_a_group_that_raises_gets_503(room: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Stripe):
        def check(self, headers: Headers, body: bytes, now: float) -> None:
            raise KeyError("secret")

    def no_group(delivery: Delivery) -> str | None:
        raise KeyError("secret")

    inbox = room.inbox()
    assert await post(inbox, Wrong(SECRET), stripe(BODY), BODY) == 503
    assert await post(inbox, Stripe(SECRET), stripe(BODY), BODY, group=no_group) == 503
    assert "KeyError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_challenge_is_returned_and_not_stored(room: Any) -> None:
    inbox, body = room.inbox(), b'{"type": "url_verification", "challenge": "3eZ"}'
    response = await settled(receiver_for(inbox, Slack(SECRET)).receive(slack(body), body))
    assert (response.status, response.body) == (200, b"3eZ")
    assert response.headers["Content-Type"].startswith("text/plain")
    assert await stored(inbox) == []


async def test_a_body_that_is_too_long_gets_413(room: Any) -> None:
    inbox = room.inbox()
    assert await post(inbox, Stripe(SECRET), stripe(BODY), BODY, max_bytes=len(BODY) - 1) == 413
    assert await post(inbox, Stripe(SECRET), stripe(BODY), BODY, max_bytes=len(BODY)) == 200


async def test_the_group_is_configured(room: Any) -> None:
    inbox = room.inbox("ordered", order="fifo")

    def customer(delivery: Delivery) -> str | None:
        name: str = delivery.payload["name"]
        return name

    assert await post(inbox, Stripe(SECRET), stripe(BODY), BODY, group=customer) == 200
    assert [message.group for message in await stored(inbox)] == ["Zoë"]
    # Without a group, a FIFO box takes no message. The delivery is kept.
    other = b'{"id": "evt_2", "type": "t"}'
    assert await post(inbox, Stripe(SECRET), stripe(other), other) == 200
    assert len(await settled(inbox.dead_letters())) == 1


EVENTS = [
    CloudEvent(
        id=f"A{number}", source="/s", type="t", subject="x y", datacontenttype="application/json", data={"n": number}
    )
    for number in range(3)
]


@pytest.mark.parametrize(
    ("encoded", "count"),
    [(to_structured(EVENTS[0]), 1), (to_binary(EVENTS[0]), 1), (to_batch(EVENTS), 3), (to_batch([]), 0)],
    ids=["structured", "binary", "batched", "empty"],
)
async def test_cloud_events_in_all_modes(room: Any, encoded: Any, count: int) -> None:
    inbox = room.inbox()
    scheme = CloudEvents(signed_by=StandardWebhooks(SECRET), group="subject")
    signed = {**encoded.headers, **sign(SECRET, "msg_1", NOW, encoded.body)}
    for _ in range(2):
        assert await post(inbox, scheme, signed, encoded.body) == 200
    assert await post(inbox, scheme, encoded.headers, encoded.body) == 401
    messages = await stored(inbox)
    assert [from_message(message) for message in messages] == EVENTS[:count]
    assert {message.group for message in messages} <= {"x y"}


async def test_a_batch_with_a_bad_event_is_one_dead_letter(room: Any) -> None:
    inbox = room.inbox()
    headers, body = to_batch(EVENTS)
    broken = body.replace(b'"id":"A1",', b"")
    assert await post(inbox, CloudEvents(signed_by=None), headers, broken) == 200
    [letter] = await stored(inbox)
    assert (letter.state, letter.payload, letter.source) == (State.DEAD, broken, "cloudevents")
    assert "no id" in (letter.last_error or "")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/shop", "sqlite:///{}/none/shop.db"])
@pytest.mark.parametrize("body", [BODY, b"undecodable"], ids=["good", "dead letter"])
async def test_a_store_that_is_down_gets_503(
    url: str, body: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = postroom.Postroom(url.format(tmp_path), storage_retry=StorageRetry.NONE)
    response = await receiver_for(room.inbox(), Stripe(SECRET)).receive(stripe(body), body)
    assert response.status == 503
    assert int(response.headers["Retry-After"]) > 0
    assert "was not stored" in caplog.text
    assert "charge" not in caplog.text
    await room.close()
    assert (await receiver_for(room.inbox(), Stripe(SECRET)).receive(stripe(body), body)).status == 503


async def test_without_its_tables_a_store_gets_503(tmp_path: Path) -> None:
    with sync.Postroom(f"sqlite:///{tmp_path}/shop.db") as room:
        assert receiver_for(room.inbox(), Stripe(SECRET)).receive(stripe(BODY), BODY).status == 503


async def test_the_response_waits_for_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    room = postroom.Postroom("memory://")
    inbox = room.inbox()
    begun, commit = asyncio.Event(), asyncio.Event()
    put = inbox._store.put

    async def slow_put(*args: Any, **options: Any) -> Any:
        begun.set()
        await commit.wait()
        return await put(*args, **options)

    monkeypatch.setattr(inbox._store, "put", slow_put)
    response = asyncio.create_task(receiver_for(inbox, Stripe(SECRET)).receive(stripe(BODY), BODY))
    await begun.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not response.done()
    commit.set()
    assert (await response).status == 200
    await room.close()


def test_each_receiver_has_its_inbox() -> None:
    with sync.Postroom("memory://") as room:
        wrong: Any = room.inbox()
        with pytest.raises(ArgumentTypeError, match="async"):
            Receiver(wrong, Stripe(SECRET))
        with pytest.raises(ArgumentTypeError, match="scheme"):
            SyncReceiver(room.inbox(), wrong)
        with pytest.raises(ArgumentValueError):
            SyncReceiver(room.inbox(), Stripe(SECRET), max_bytes=0)
        bad: Any = "other"
        with pytest.raises(ArgumentValueError):
            SyncReceiver(room.inbox(), Stripe(SECRET), key=bad)
    wrong = postroom.Postroom("memory://").inbox()
    with pytest.raises(ArgumentTypeError, match=r"postroom\.sync"):
        SyncReceiver(wrong, Stripe(SECRET))


async def test_a_scheme_of_the_user(room: Any) -> None:
    class Mine(Scheme):
        def check(self, headers: Headers, body: bytes, now: float) -> None:
            headers.required("x-mine")

        def read(self, headers: Headers, body: bytes) -> list[Delivery]:
            return [self.json_delivery(headers, body, id="1", topic="mine", payload=body)]

    inbox = room.inbox()
    assert await post(inbox, Mine(source="mine"), {}, b"x") == 401
    assert await post(inbox, Mine(source="mine"), {"X-Mine": ""}, b"x") == 200
    assert [message.topic for message in await stored(inbox)] == ["mine"]
