"""The receiver on the page about webhooks, line by line of what the documents ask of such an endpoint."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom import OwnerToken, State
from postroom.sync import Inbox, Postroom
from postroom.webhooks import SyncReceiver
from tests.docs.pages import ROOT, programs_in

PAGE = ROOT / "docs/how-to/receive-a-webhook.md"
SECRET = b"whsec_test"
NOW = 1_700_000_000
BODY = '{"id": "evt_1", "type": "charge.succeeded", "name": "Zoë"}'.encode()
FIVE_MINUTES = 300

Receive = Callable[[bytes, str | None], int]


def sign(body: bytes = BODY, at: int = NOW, secret: bytes = SECRET) -> str:
    return f"t={at},v1=" + hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the page's first block defines: a room, its inbox, and a receiver."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(programs_in(PAGE, PAGE.read_text("utf-8"))[0].blocks[0].code, names)
    room: Postroom = names["room"]
    yield names
    room.close()


@pytest.fixture
def inbox(page: dict[str, Any]) -> Inbox:
    found: Inbox = page["inbox"]
    return found


@pytest.fixture
def receive(page: dict[str, Any]) -> Receive:
    """Posts a body with this signature at the time NOW. Returns the status."""
    receiver: SyncReceiver = page["receiver"]
    receiver._clock = lambda: NOW

    def receive(body: bytes, header: str | None) -> int:
        return receiver.receive({} if header is None else {"Stripe-Signature": header}, body).status

    return receive


def warnings(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records if record.name == "postroom.webhooks"]


@pytest.mark.req("IBX-EX-02", "C-62")
def test_without_the_header_401_and_a_warning(receive: Receive, inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    assert receive(BODY, None) == 401
    assert warnings(caplog) == [logging.WARNING]
    assert inbox.find() == []


@pytest.mark.req("IBX-EX-03", "C-62")
@pytest.mark.parametrize(
    "header",
    [
        sign(secret=b"another"),
        sign(BODY + b" "),
        sign().replace("v1=", "v0="),
        sign().replace("t=", "x="),
        sign().upper(),
        f"t={NOW},v1=",
        f"t={NOW},v1=é",
        "",
        "t",
    ],
)
def test_a_signature_that_does_not_match_401(receive: Receive, inbox: Inbox, header: str) -> None:
    assert receive(BODY, header) == 401
    assert inbox.find() == []


@pytest.mark.req("IBX-EX-03", "C-62")
def test_any_of_several_signatures_may_match(receive: Receive) -> None:
    good = sign().partition(",")[2]
    assert receive(BODY, f"t={NOW},v1=00,{good}") == 200
    assert receive(BODY, f"t={NOW}, {good}, v1=00") == 200


@pytest.mark.req("IBX-EX-04", "C-62")
@pytest.mark.parametrize(("distance", "status"), [(0, 200), (FIVE_MINUTES, 200), (FIVE_MINUTES + 1, 401)])
@pytest.mark.parametrize("direction", [-1, 1], ids=["old", "future"])
def test_a_time_more_than_five_minutes_away_is_refused_and_logged(
    receive: Receive, caplog: pytest.LogCaptureFixture, distance: int, direction: int, status: int
) -> None:
    assert receive(BODY, sign(at=NOW + direction * distance)) == status
    assert len(warnings(caplog)) == (status == 401)


@pytest.mark.req("IBX-EX-04", "C-62")
@pytest.mark.parametrize("time", ["", "x", "1.5", f"{NOW},t={NOW}"])
def test_a_time_that_cannot_be_read_is_refused(receive: Receive, time: str) -> None:
    assert receive(BODY, sign().replace(f"t={NOW}", f"t={time}")) == 401


@pytest.mark.req("IBX-EX-05", "IBX-EX-07")
def test_a_new_event_is_stored_under_its_type_with_the_hash_of_its_body(receive: Receive, inbox: Inbox) -> None:
    assert receive(BODY, sign()) == 200
    [message] = inbox.find()
    assert (message.topic, message.source, message.message_id) == ("stripe.charge.succeeded", "StripeWebhook", "evt_1")
    assert message.hash == hashlib.sha256(BODY).digest()
    assert message.payload == json.loads(BODY)
    assert message.state is State.WAITING


@pytest.mark.req("IBX-EX-06", "C-62")
@pytest.mark.parametrize("done", [False, True])
def test_a_known_event_gets_200_and_is_not_stored_again(receive: Receive, inbox: Inbox, done: bool) -> None:
    receive(BODY, sign())
    owner = OwnerToken.new()
    if done:
        inbox.ack(owner, inbox.claim(owner))
    before = inbox.find()
    assert receive(BODY, sign()) == 200
    [after] = inbox.find()
    assert (after.state, after.attempt, after.revision) == (before[0].state, 0, 0)
    assert inbox.already_processed("evt_1", "StripeWebhook") is done
