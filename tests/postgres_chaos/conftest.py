"""A server of our own, which may be stopped, killed and starved of connections."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.postgres import PostgresServer

from tests.postgres_chaos.crew import prepare

# Servers and workers are killed here while both cores are busy: that needs the machine for itself, and some minutes.
# `make chaos` runs them; so does whoever sets POSTROOM_CHAOS.
collect_ignore_glob = [] if os.environ.get("POSTROOM_CHAOS") else ["test_*.py"]


@pytest.fixture(scope="session")
def private_server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
    except ServerMissing as reason:
        missing(reason)
    with server:
        yield server


@pytest.fixture
def server(private_server: PostgresServer) -> PostgresServer:
    """It runs, with its own settings, whatever the test before has done to it."""
    if private_server.settings or not private_server.running:
        private_server.settings = {}
        private_server.stop()
        private_server.start()
    return private_server


@pytest.fixture
def database(server: PostgresServer) -> str:
    """The name of a new database with our tables, and one for effects."""
    name = f"chaos_{secrets.token_hex(4)}"
    prepare(server.create_database(name))
    return name
