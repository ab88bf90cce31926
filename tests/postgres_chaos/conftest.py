"""A server of our own, which may be stopped, killed and starved of connections."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.postgres import PostgresServer

from tests.postgres_chaos.workers import prepare

SETTINGS = {"max_connections": "200"}
"""Sixteen workers, each with a separate pool, and the connections of the test."""

# Servers and workers are killed here while both cores are busy: that needs the machine for itself, and some minutes.
# `make chaos` runs them, as does any run with POSTROOM_CHAOS set.
collect_ignore_glob = [] if os.environ.get("POSTROOM_CHAOS") else ["test_*.py"]


@pytest.fixture(scope="session")
def private_server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer(SETTINGS)
    except ServerMissing as reason:
        missing(reason)
    with server:
        yield server


@pytest.fixture
def server(private_server: PostgresServer) -> PostgresServer:
    """It runs, with its own settings, whatever the test before has done to it."""
    if private_server.settings != SETTINGS or not private_server.running:
        private_server.settings = dict(SETTINGS)
        private_server.stop()
        private_server.start()
    return private_server


@pytest.fixture
def database(server: PostgresServer) -> str:
    """The name of a new database with our tables, and one for effects."""
    name = f"chaos_{secrets.token_hex(4)}"
    prepare(server.create_database(name))
    return name


@pytest.fixture
def bare_url(server: PostgresServer) -> str:
    """The URL of a new database without tables, for what is not about power cuts: it does not wait for the disk."""
    name = f"chaos_{secrets.token_hex(4)}"
    url = server.create_database(name)
    server.query(f"ALTER DATABASE {name} SET synchronous_commit = off")
    return url


@pytest.fixture
def quick_url(bare_url: str) -> str:
    """The same, with our tables, and one for effects."""
    prepare(bare_url)
    return bare_url
