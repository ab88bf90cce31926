"""`postroom run`: it handles messages until a signal ends it."""

from __future__ import annotations

import json
import re
import signal
import socket
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from postroom import State
from tests.cli.conftest import RunEach, Start
from tests.cli.shop import SECRET, open_shop, write_module


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_migrates_handles_and_ends_with_0(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    write_module(tmp_path)
    worker = start("run", "shop:room", "--migrate")
    assert worker.line() == "shop:room on sqlite:shop.db"
    assert worker.line() == "  inbox orders: order.placed, order.paid"
    assert worker.line() == "  outbox mail: no handlers"
    with open_shop(tmp_path) as room:
        orders = room.inbox("orders", order="fifo")
        for message_id in "123":
            orders.enqueue("order.placed", SECRET, source="web", message_id=message_id, group="ann")
        assert [worker.line() for _ in range(3)] == ["handled 1", "handled 2", "handled 3"]
        code, logged = worker.end(number)
        assert (code, orders.counts()[State.DONE]) == (0, 3)
    assert re.search(r"^[-\d]+ [:,\d]+ INFO postroom: .*handling topic=order.placed", logged, re.MULTILINE)
    assert SECRET not in logged


def test_it_starts_in_json_and_logs_as_little_as_asked(start: Start, tmp_path: Path) -> None:
    write_module(tmp_path)
    with open_shop(tmp_path) as room:
        orders = room.inbox("orders", order="fifo")
        orders.enqueue("order.paid", SECRET, source="web", message_id="1", group="ann")
        orders.enqueue("order.placed", SECRET, source="web", message_id="2", group="bob")
    worker = start("run", "shop:room", "--json", "--log-level", "warning")
    assert json.loads(worker.line()) == {
        "store": "sqlite:shop.db",
        "boxes": [
            {"kind": "inbox", "name": "orders", "topics": ["order.placed", "order.paid"]},
            {"kind": "outbox", "name": "mail", "topics": []},
        ],
    }
    assert worker.line() == "handled 2"
    code, logged = worker.end(signal.SIGTERM)
    assert code == 0
    assert re.search(" WARNING postroom: .*topic=order.paid .*attempt 1 of 10 failed", logged)
    assert "INFO" not in logged
    assert SECRET not in logged


def test_debugging_shows_no_payloads(start: Start, tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "from postroom import Postroom\n\nroom = Postroom('sqlite:///shop.db')\n\n"
        "@room.inbox('orders').handler('order.placed', transactional=True)\n"
        "async def placed(message, tx):\n"
        "    await tx.execute('SELECT ?', [message.payload])\n"
        "    print('handled', flush=True)\n",
    )
    with open_shop(tmp_path) as room:
        room.inbox("orders").enqueue("order.placed", SECRET, source="web", message_id="1")
    worker = start("run", "shop:room", "--log-level", "debug")
    worker.until("handled")
    code, logged = worker.end(signal.SIGTERM)
    assert code == 0
    assert "DEBUG postroom: claimed 1" in logged
    assert SECRET not in logged


TWO_BOXES = """\
from postroom import Postroom

room = Postroom("sqlite:///shop.db")
room.on_start(room.migrate)


@room.inbox("orders").handler("order.placed")
async def placed(message):
    print("handled", message.message_id, flush=True)


@room.outbox("mail").handler("mail.send")
async def send(message):
    print("sent", message.message_id, flush=True)


room.outbox("quiet")
"""


def test_it_runs_the_boxes_that_are_named(start: Start, tmp_path: Path) -> None:
    write_module(tmp_path, TWO_BOXES)
    with open_shop(tmp_path) as room:
        room.inbox("orders").enqueue("order.placed", {}, source="web", message_id="1")
        room.outbox("mail").enqueue("mail.send", {}, message_id="2")
        worker = start("run", "shop:room", "--outbox", "mail", "--outbox", "mail", "--json")
        assert json.loads(worker.line())["boxes"] == [{"kind": "outbox", "name": "mail", "topics": ["mail.send"]}]
        assert worker.line() == "sent 2"
        assert worker.end(signal.SIGTERM)[0] == 0
        assert room.inbox("orders").get("1").state is State.WAITING
        both = start("run", "shop:room", "--outbox", "mail", "--inbox", "orders")
        assert [both.line() for _ in range(3)] == [
            "shop:room on sqlite:shop.db",
            "  inbox orders: order.placed",
            "  outbox mail: mail.send",
        ]
        assert both.line() == "handled 1"
        assert both.end(signal.SIGTERM)[0] == 0


def test_a_box_that_cannot_be_run_is_named(run_each: RunEach, tmp_path: Path) -> None:
    write_module(tmp_path, TWO_BOXES)
    unknown, quiet, health, heartbeat = run_each(
        ("run", "shop:room", "--inbox", "mail"),
        ("run", "shop:room", "--outbox", "mail", "--outbox", "quiet"),
        ("run", "shop:room", "--health", "8080"),
        ("run", "shop:room", "--heartbeat", "missing/beat"),
    )
    assert unknown.stderr.startswith("postroom: the room has no inbox 'mail'; it has inbox 'orders', outbox 'mail'")
    assert quiet.stderr.startswith("postroom: outbox 'quiet' has no handlers: register one, or leave this box out")
    assert health.stderr.startswith("postroom: health must be HOST:PORT, such as 127.0.0.1:8080")
    assert "No such file or directory: 'missing/beat'" in heartbeat.stderr
    assert [ran.returncode for ran in (unknown, quiet, health, heartbeat)] == [1] * 4


def get(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_it_shows_its_health(start: Start, tmp_path: Path) -> None:
    write_module(tmp_path, TWO_BOXES)
    worker = start("run", "shop:room", "--health", "127.0.0.1:0", "--heartbeat", "beat")
    worker.line()
    assert worker.process.stderr
    logged = worker.process.stderr.readline()
    live, ready = re.findall(r"http://\S+?(?=,|$)", logged.strip())
    assert (live.endswith("/live"), ready.endswith("/ready")) == (True, True)
    assert get(live) == 200
    while get(ready) != 200:  # it has said what it runs, but not yet started
        pass
    assert get(live.replace("/live", "/")) == 404
    assert (tmp_path / "beat").exists()
    assert worker.end(signal.SIGTERM)[0] == 0
    assert not (tmp_path / "beat").exists()


def test_it_notifies_systemd(start: Start, tmp_path: Path) -> None:
    write_module(tmp_path, TWO_BOXES)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(60)
        systemd.bind(f"{folder}/notify")
        worker = start("run", "shop:room", NOTIFY_SOCKET=f"{folder}/notify")
        assert systemd.recv(100) == b"READY=1"
        assert worker.end(signal.SIGTERM)[0] == 0
        assert systemd.recv(100) == b"STOPPING=1"
