"""Where the joins of a test are: a store of each kind, empty."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.postgres import PostgresServer

from tests import redis
from tests.join_load.load import Place
from tests.postgres import clean_database, with_driver


@pytest.fixture(scope="session")
def private_postgres() -> Iterator[PostgresServer]:
    """A server with connections for eight worker processes."""
    try:
        server = PostgresServer({"max_connections": "200"})
    except ServerMissing as reason:
        missing(reason)
    with server:
        yield server


@pytest.fixture
async def place(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The place of the store that a test has as its parameter."""
    if store == "redis":
        return Place(redis.server(), redis.new_prefix())
    if store == "cluster":
        return Place(redis.cluster(), redis.new_prefix(of_shared_server=False))
    if store == "aiosqlite":
        place = Place(f"sqlite:///{tmp_path}/load.db")
    elif os.environ.get("POSTROOM_CHAOS"):
        server: PostgresServer = request.getfixturevalue("private_postgres")
        name = f"joins_{secrets.token_hex(4)}"
        place = Place(with_driver(server.create_database(name), store))
        server.query(f"ALTER DATABASE {name} SET synchronous_commit = off")
    else:
        place = Place(with_driver(clean_database(), store))
    async with place.open() as room:
        await room.migrate()
    return place
