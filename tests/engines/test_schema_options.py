"""Where the tables are, and who makes them: the options of a room, on SQLite and on PostgreSQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import ArgumentTypeError, OwnerToken, SchemaMissing
from postroom import Postroom as AsyncPostroom
from postroom.sync import Postroom
from tests.postgres import create_database, server

PASSWORD = "postroom"
WORKER = OwnerToken.new()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database without tables."""
    return create_database() if request.param == "postgres" else f"sqlite:///{tmp_path}/shop.db"


def tables(url: str) -> set[str]:
    """Tables and views in the database, with their schema where there is one."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type <> 'index'")}
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT LIKE 'pg%' "
            "AND table_schema <> 'information_schema'"
        ).fetchall()
    return {name if schema == "public" else f"{schema}.{name}" for schema, name in found}


@pytest.mark.req("IBX-115", "OBX-103", "IBX-CFG-04", "OBX-CFG-04")
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
def test_without_deployment_nothing_is_created(url: str, kind: str) -> None:
    with Postroom(url) as room:
        box: Any = getattr(room, kind)()
        for call in (
            lambda: box.enqueue("t", "x", source="s", message_id="1"),
            box.find,
            lambda: box.claim(WORKER),
        ):
            with pytest.raises(SchemaMissing, match="migrate"):
                call()
    assert tables(url) == set()


@pytest.mark.req("IBX-115", "OBX-103")
async def test_without_deployment_nothing_is_created_by_an_async_room_that_starts(url: str) -> None:
    room = AsyncPostroom(url)
    room.outbox().handler("t")(lambda _: None)
    with pytest.raises(SchemaMissing, match="migrate"):
        await room.start()
    await room.close()
    assert tables(url) == set()


@pytest.mark.req("IBX-115", "OBX-103")
def test_without_deployment_a_role_that_may_create_nothing_is_enough() -> None:
    url = create_database()
    role = url.rpartition("/")[2]
    with Postroom(url) as room:
        room.migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'",
            "REVOKE CREATE ON SCHEMA public FROM public",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
        ):
            connection.execute(statement.encode())
    try:
        address = url.partition("@")[2]
        with Postroom(f"postgresql+psycopg://{role}:{PASSWORD}@{address}") as room:
            assert room.outbox().enqueue("t", "x").is_new
            [message] = room.outbox().claim(WORKER)
            assert room.outbox().ack(WORKER, [message]) == [True]
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.req("IBX-114", "OBX-102", "IBX-API-32", "RHI-136")
def test_with_deployment_the_first_use_creates_the_tables(url: str) -> None:
    with Postroom(url, deploy_schema=True) as room:
        assert room.outbox().enqueue("t", "x").is_new
    assert {"postroom_message", "postroom_queue", "postroom_ledger"} <= tables(url)


@pytest.mark.req("IBX-API-32")
def test_the_prefix_names_the_tables(url: str) -> None:
    with Postroom(url, prefix="acme_", deploy_schema=True) as room:
        room.inbox().enqueue("t", "x", source="s", message_id="1")
    made = tables(url)
    assert {"acme_message", "acme_queue", "acme_ledger", "acme_inbox", "acme_outbox"} <= made
    assert all(name.startswith("acme_") for name in made)


@pytest.mark.req("IBX-API-32")
def test_the_schema_holds_the_tables() -> None:
    url = create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA mail")
    with Postroom(url, schema="mail", prefix="acme_", deploy_schema=True) as room:
        room.inbox().enqueue("t", "x", source="s", message_id="1")
        assert room.inbox().get("1").payload == "x"
    made = tables(url)
    assert {"mail.acme_message", "mail.acme_queue"} <= made
    assert all(name.startswith("mail.acme_") for name in made)


@pytest.mark.req("IBX-CFG-01", "OBX-CFG-01", "RHI-023")
@pytest.mark.parametrize("room", [Postroom, AsyncPostroom])
def test_a_room_needs_a_url(monkeypatch: pytest.MonkeyPatch, room: Any) -> None:
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    with pytest.raises(ArgumentTypeError, match="pass a URL"):
        room()


@pytest.mark.req("IBX-CFG-01", "OBX-CFG-01", "RHI-023")
@pytest.mark.store("postgres")
def test_a_url_is_all_that_postgresql_needs() -> None:
    with Postroom(create_database()) as room:
        room.migrate()
        assert room.inbox().enqueue("t", "x", source="s", message_id="1").is_new
        assert room.outbox().enqueue("t", "x").is_new


@pytest.mark.req("IBX-128", "OBX-120")
@pytest.mark.store("postgres")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_encryption_is_asked_for_in_the_url(driver: str) -> None:
    """A server that has no certificate refuses, and nothing goes over a plain connection."""
    with psycopg.connect(server()) as connection:
        row = connection.execute("SHOW ssl").fetchone()
    plain = server().replace("postgresql://", f"postgresql+{driver}://")
    room = AsyncPostroom(f"{plain}?sslmode=require")
    try:
        if row == ("off",):
            with pytest.raises(Exception, match=r"(?i)ssl"):
                await room.outbox().counts()
        else:
            with pytest.raises(SchemaMissing):
                await room.outbox().counts()
    finally:
        await room.close()
