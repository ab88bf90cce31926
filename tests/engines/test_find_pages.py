"""A page is first looked for among the next messages of all boxes, then in all of its own box."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom import NewMessage, State
from postroom._stores.sql import finding
from postroom.sync import Postroom
from tests.postgres import clean_database


@pytest.mark.parametrize("store", ["sqlite3", "psycopg"])
def test_a_small_box_behind_a_large_one(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "NEARBY", 4)
    url = f"sqlite:///{tmp_path}/room.db" if store == "sqlite3" else clean_database()
    with Postroom(url, deploy_schema=True) as room:
        large, small = room.outbox("large"), room.outbox("small")
        large.enqueue_many([NewMessage("t", str(n)) for n in range(10)])
        small.enqueue_many([NewMessage("t", str(n)) for n in range(3)])
        large.enqueue_many([NewMessage("t", str(n)) for n in range(10, 20)])
        assert [message.payload for message in small.find()] == ["0", "1", "2"]
        assert [message.payload for message in small.find(limit=2)] == ["0", "1"]
        [*_, last] = small.find(limit=2)
        assert [message.payload for message in small.find(after=last.id)] == ["2"]
        assert [message.payload for message in large.find(limit=12)] == [str(n) for n in range(12)]
        assert [message.payload for message in large.find(limit=2, states={State.WAITING})] == ["0", "1"]
        assert small.find(states={State.DONE}) == []
