"""Claims beside each other on PostgreSQL: a row that another transaction has locked is passed by, not waited for."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from postroom import OwnerToken
from postroom.sync import Outbox, Postroom
from tests.postgres import clean_database

WORKER = OwnerToken.new()


@pytest.fixture
def url() -> str:
    return clean_database()


@pytest.fixture
def outbox(url: str) -> Iterator[Outbox]:
    with Postroom(url) as room:
        yield room.outbox()


@pytest.mark.req("RHI-147", "RHI-022")
def test_a_claim_passes_by_what_another_transaction_has_locked(url: str, outbox: Outbox) -> None:
    for name in ("1", "2", "3"):
        outbox.enqueue("t", "x", message_id=name)
    with psycopg.connect(url) as other:
        other.execute("SET lock_timeout = '5s'")
        other.execute(
            "SELECT FROM postroom_queue q JOIN postroom_message m USING (id) WHERE m.message_id = '2' FOR UPDATE OF q"
        )
        assert [message.message_id for message in outbox.claim(WORKER)] == ["1", "3"]
        other.rollback()
    assert [message.message_id for message in outbox.claim(WORKER)] == ["2"]
