"""`postroom purge`: what is finished and old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from postroom import OwnerToken, State
from postroom.sync import Postroom
from postroom.testing import FrozenClock
from tests.cli.conftest import Ran, Run, RunEach, output_of
from tests.cli.shop import URL, open_shop

MODULE = """\
from datetime import timedelta
from postroom import Postroom

room = Postroom("sqlite:///shop.db")
inbox = room.inbox(retention=timedelta(days=7), dead_retention=timedelta(days=7))
"""


def fill(folder: Path) -> None:
    """Ten days ago: two done, one dead, one seen, and one claimed by a worker that is gone."""
    past = FrozenClock(datetime.now(UTC) - timedelta(days=10))
    with Postroom(f"sqlite:///{folder / 'shop.db'}", deploy_schema=True, clock=past) as room:
        inbox, owner = room.inbox(), OwnerToken.new()
        for message_id in "1234":
            inbox.enqueue("topic", {}, source="web", message_id=message_id)
        claimed = inbox.claim(owner)
        inbox.ack(owner, claimed[:2])
        inbox.fail(owner, claimed[2:3], "no")
        inbox.already_processed("5", "web")


def deleted(ran: Ran) -> list[tuple[int, int]]:
    return [(row["reaped"], row["deleted"]) for row in output_of(ran)["boxes"]]


def counts(folder: Path) -> dict[Any, int]:
    with open_shop(folder) as room:
        return {state: count for state, count in room.inbox().counts().items() if count}


def test_a_url_purges_by_the_defaults_or_by_age(run_each: RunEach, tmp_path: Path) -> None:
    fill(tmp_path)
    purge = ("purge", "--url", URL, "--yes", "--json")
    kept = run_each(purge, (*purge, "--older-than", "11d"), (*purge, "--state", "seen", "--older-than", "11d"))
    assert [deleted(ran) for ran in kept] == [[(0, 0)]] * 3
    done, seen, elsewhere = run_each(
        (*purge, "--older-than", "9d"),
        (*purge, "--state", "seen", "--older-than", "9d", "--inbox", "inbox"),
        ("purge", "--url", URL, "--outbox", "outbox"),
    )
    assert (deleted(done), deleted(seen)) == ([(0, 2)], [(0, 1)])
    assert output_of(done)["boxes"][0] == {"kind": "inbox", "name": "inbox", "reaped": 0, "deleted": 2}
    assert (elsewhere.returncode, elsewhere.stderr) == (
        0,
        "there is nothing in outbox:outbox; there is in inbox:inbox\n",
    )
    assert "deleted" in elsewhere.stdout
    assert counts(tmp_path) == {State.CLAIMED: 1, State.DEAD: 1}


def test_a_room_purges_as_its_boxes_say_and_reaps(run_each: RunEach, tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "shop.py").write_text(MODULE)
    [ran] = run_each(("purge", "shop:room", "--reap", "--yes", "--json"))
    assert deleted(ran) == [(1, 3)]
    assert counts(tmp_path) == {State.SEEN: 1, State.WAITING: 1}


def test_an_inbox_says_how_many_keys_it_forgets_and_asks(run: Run, run_each: RunEach, tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "shop.py").write_text(MODULE)
    before = counts(tmp_path)
    by_age, room, seen, young = run_each(  # not confirmed
        ("purge", "--url", URL, "--older-than", "9d"),
        ("purge", "shop:room"),
        ("purge", "--url", URL, "--state", "seen", "--older-than", "9d"),
        ("purge", "--url", URL, "--older-than", "11d"),
    )
    for ran, keys in ((by_age, "2 deduplication keys"), (room, "3 deduplication keys"), (seen, "1 deduplication key")):
        assert ran.returncode == 1
        assert f"inbox 'inbox': this forgets {keys}; a message that is delivered again is new" in ran.stderr
        assert "delete? [y/N]" in ran.stderr
    assert (young.returncode, young.stderr) == (0, "")  # it forgets none, so there is nothing to ask
    assert counts(tmp_path) == before
    agreed = run("purge", "--url", URL, "--older-than", "9d", stdin="y\n")
    assert agreed.returncode == 0
    assert counts(tmp_path) == {State.CLAIMED: 1, State.DEAD: 1, State.SEEN: 1}


def test_the_window_of_deduplication_counts(run_each: RunEach, tmp_path: Path) -> None:
    """A key that must still be known is neither counted nor forgotten."""
    fill(tmp_path)
    (tmp_path / "shop.py").write_text(MODULE.replace("retention=", "dedup_window=timedelta(days=60), retention=", 1))
    asked, agreed = run_each(("purge", "shop:room"), ("purge", "shop:room", "--yes", "--json"))
    assert "this forgets 1 deduplication key;" in asked.stderr  # that of the dead letter
    assert deleted(agreed) == [(0, 1)]


def fill_outbox(folder: Path) -> None:
    """Two done, one dead, one waiting."""
    with open_shop(folder) as room:
        outbox, owner = room.outbox(), OwnerToken.new()
        for _ in range(3):
            outbox.enqueue("topic", {})
        claimed = outbox.claim(owner)
        outbox.ack(owner, claimed[:2])
        outbox.fail(owner, claimed[2:], "no")
        outbox.enqueue("topic", {})


OUTBOX = """
outbox = room.outbox(retention=timedelta(0), dead_retention=timedelta(0))
"""


def test_an_outbox_says_how_many_messages_it_deletes_and_asks(run: Run, run_each: RunEach, tmp_path: Path) -> None:
    fill(tmp_path)
    fill_outbox(tmp_path)
    (tmp_path / "shop.py").write_text(MODULE + OUTBOX)
    by_age, room, alone, young = run_each(  # not confirmed
        ("purge", "--url", URL, "--older-than", "0s"),
        ("purge", "shop:room"),
        ("purge", "--url", URL, "--older-than", "0s", "--outbox", "outbox"),
        ("purge", "--url", URL, "--older-than", "11d"),
    )
    keys = "inbox 'inbox': this forgets {} deduplication keys; a message that is delivered again is new\n"
    deletes = "outbox 'outbox': this deletes {}\n"
    for ran, said in (
        (by_age, keys.format(2) + deletes.format("2 done messages")),
        (room, keys.format(3) + deletes.format("2 done messages, 1 dead message")),
        (alone, deletes.format("2 done messages")),
    ):
        assert ran.returncode == 1
        assert ran.stderr.startswith(f"{said}delete? [y/N]")
    assert (young.returncode, young.stderr) == (0, "")
    agreed = run("purge", "shop:room", "--outbox", "outbox", stdin="y\n")
    assert agreed.returncode == 0
    with open_shop(tmp_path) as shop:
        assert {state: count for state, count in shop.outbox().counts().items() if count} == {State.WAITING: 1}
