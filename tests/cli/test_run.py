"""`postroom run`: it handles messages until it is told to end."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from postroom import State
from tests.cli.conftest import Start
from tests.cli.shop import SECRET, open_shop, write_module


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_migrates_handles_and_ends_with_0(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    write_module(tmp_path)
    worker = start("run", "shop:room", "--migrate")
    assert worker.line() == "shop:room on sqlite:shop.db"
    assert worker.line() == "  inbox orders: order.placed, order.paid"
    assert worker.line() == "  outbox mail: no handlers"
    with open_shop(tmp_path) as room:
        orders = room.inbox("orders")
        for message_id in "123":
            orders.enqueue("order.placed", SECRET, source="web", message_id=message_id)
        assert [worker.line() for _ in range(3)] == ["handled 1", "handled 2", "handled 3"]
        code, logged = worker.end(number)
        assert (code, orders.counts()[State.DONE]) == (0, 3)
    assert re.search(r"^[-\d]+ [:,\d]+ INFO postroom: .*handling topic=order.placed", logged, re.MULTILINE)
    assert SECRET not in logged


def test_it_starts_in_json_and_logs_as_little_as_asked(start: Start, tmp_path: Path) -> None:
    write_module(tmp_path)
    with open_shop(tmp_path) as room:
        orders = room.inbox("orders")
        orders.enqueue("order.paid", SECRET, source="web", message_id="1")
        orders.enqueue("order.placed", SECRET, source="web", message_id="2")
    worker = start("run", "shop:room", "--json", "--log-level", "error")
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
    assert re.search(" ERROR postroom: .*handler failed on topic=order.paid", logged)
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
