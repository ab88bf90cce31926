"""The definition of the fields of a message, and that every store keeps exactly these."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID

import psycopg
import pytest

from postroom._connect import open_store
from postroom._kernel import fields
from postroom._stores.sql import rows
from postroom.spi import Box, ClaimRequest, Draft, Filter, Message, StoredMessage
from tests.postgres import clean_database
from tests.redis import new_prefix, server

BOX = Box("inbox", "fields")
OWNER = UUID(int=1)
TIME = datetime(2030, 1, 1, tzinfo=UTC)
VIEWS = ["postroom_work", "postroom_entry"]
CONTENT_COLUMNS = [fields.COLUMNS[name] for name in fields.CONTENT_FIELDS]


def distinct_draft() -> Draft:
    """A draft in which every content field has another value. A field that is added to the labels is a text."""
    values: dict[str, Any] = {name: f"the {name}" for name in fields.CONTENT_FIELDS}
    times = [name for name in fields.CONTENT_FIELDS if name in fields.TIME_FIELDS]
    values |= {name: TIME + timedelta(days=day) for day, name in enumerate(times)}
    values |= {"format": "bytes", "payload": b"the payload", "headers": {"a": "header"}, "hash": b"the hash"}
    values["due"] = datetime(2001, 1, 1, tzinfo=UTC)  # passed, so that the message can be claimed
    return Draft(**values)


def content(value: Draft | StoredMessage) -> dict[str, Any]:
    return {name: getattr(value, name) for name in fields.CONTENT_FIELDS}


class TestDefinition:
    def test_content_and_progress_are_all_fields(self) -> None:
        assert {*fields.CONTENT_FIELDS, *fields.PROGRESS_FIELDS, "lease"} == set(Message._fields)

    def test_a_draft_has_the_content_in_the_order_of_a_message(self) -> None:
        assert tuple(name for name in Draft._fields if name in fields.CONTENT_FIELDS) == fields.CONTENT_FIELDS

    def test_the_labels_are_the_same_in_draft_and_message(self) -> None:
        assert tuple(Message._fields)[fields.MESSAGE_LABELS] == fields.LABELS
        assert {"correlation_id", "group", "collapse_key"} <= set(fields.LABELS)

    def test_every_label_is_an_optional_text(self) -> None:
        for kind in (Draft, Message):
            hints = get_type_hints(kind)
            assert {hints[name] for name in fields.LABELS} == {str | None}

    def test_every_time_is_a_datetime(self) -> None:
        hints = get_type_hints(Message)
        times = {name for name in fields.MESSAGE_FIELDS if hints[name] in {datetime, datetime | None}}
        assert times == fields.TIME_FIELDS


class TestSql:
    @pytest.fixture
    def sqlite_file(self, tmp_path: Path) -> Path:
        file = tmp_path / "fields.db"
        store = open_store(f"sqlite:///{file}", mode="sync", deploy_schema=True)
        store.counts(BOX)
        store.close()
        return file

    @pytest.fixture(params=["sqlite", "postgres"])
    def columns(self, request: pytest.FixtureRequest) -> dict[str, list[str]]:
        """Table or view → its columns, in order, as the database has them."""
        relations = ["postroom_message", *VIEWS]
        if request.param == "sqlite":
            with closing(sqlite3.connect(request.getfixturevalue("sqlite_file"))) as database:
                return {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in relations}
        with psycopg.connect(clean_database()) as connection:
            found = {name: connection.execute(f"SELECT * FROM {name} LIMIT 0".encode()) for name in relations}
            return {name: [column.name for column in cursor.description or ()] for name, cursor in found.items()}

    def test_the_table_has_the_content_in_order(self, columns: dict[str, list[str]]) -> None:
        table = columns["postroom_message"]
        assert [name for name in table if name in CONTENT_COLUMNS] == CONTENT_COLUMNS

    @pytest.mark.parametrize("view", VIEWS)
    def test_the_views_have_every_field_in_order(self, columns: dict[str, list[str]], view: str) -> None:
        expected = [column for name, column in fields.COLUMNS.items() if name != "lost_leases"]
        assert [name for name in columns[view] if name in expected] == expected
        assert {"lost_leases", "owner", "fence", "available_at"} <= set(columns[view])

    def test_an_insert_writes_the_content_in_order(self) -> None:
        assert [name for name in rows.MESSAGE_COLUMNS if name in CONTENT_COLUMNS] == CONTENT_COLUMNS


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    options: dict[str, Any] = {}
    if request.param == "memory":
        url = "memory://"
    elif request.param == "sqlite":
        url, options = f"sqlite:///{tmp_path}/fields.db", {"deploy_schema": True}
    elif request.param == "postgres":
        url = clean_database()
    else:
        url, options = server(), {"prefix": new_prefix()}
    store = open_store(url, mode="sync", **options)
    yield store
    store.close()


class TestStores:
    """Each content field of a draft comes back with its own value, on every way out of a store."""

    def test_after_a_put(self, store: Any) -> None:
        given = distinct_draft()
        assert len(set(map(repr, content(given).values()))) == len(fields.CONTENT_FIELDS)
        store.put(BOX, [given])
        [found] = store.find(BOX, Filter())
        assert content(found) == content(given)
        [claimed] = store.claim(BOX, ClaimRequest(OWNER, timedelta(seconds=30), 10))
        assert content(claimed) == content(given)

    def test_after_a_put_of_a_key_that_was_seen(self, store: Any) -> None:
        given = distinct_draft()
        store.record(BOX, [Draft(*given.key)])
        store.put(BOX, [given])
        [found] = store.find(BOX, Filter())
        assert content(found) == content(given)

    def test_after_a_replacement(self, store: Any) -> None:
        given = distinct_draft()
        store.put(BOX, [Draft(*given.key)])
        store.put(BOX, [given])
        [found] = store.find(BOX, Filter())
        kept = {"group": None, "collapse_key": None, "received_at": None}
        assert content(found) == content(given) | kept
