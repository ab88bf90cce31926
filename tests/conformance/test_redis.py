"""The public behaviour suite on Redis: one server, a real cluster of three nodes, and Valkey; each in both modes."""

from __future__ import annotations

import atexit
import functools
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.valkey import ValkeyServer

from postroom._kernel.program import Mode
from postroom.spi import Store
from postroom.testing import FrozenClock, as_async
from postroom.testing.conformance import Reopen, StoreConformance
from tests.redis import cluster, new_prefix, open_at, server


@functools.cache
def valkey() -> str:
    try:
        private = ValkeyServer()
        private.start()
    except ServerMissing as error:
        missing(str(error))
    atexit.register(private.close)
    return private.url()


PLACES: dict[str, Callable[[], str]] = {"redis": server, "cluster": cluster, "valkey": valkey}


def _open(name: str, prefix: str, clock: FrozenClock) -> Store:
    place, _, mode = name.partition("-")
    store = open_at(PLACES[place](), cast("Mode", mode or "async"), prefix=prefix, clock=clock)
    return cast("Store", as_async(store) if mode else store)


class TestRedis(StoreConformance):
    @pytest.fixture(params=[f"{place}{mode}" for place in PLACES for mode in ("", "-sync")])
    def store_name(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def prefix(self, store_name: str) -> str:
        """A prefix per test. Its keys are removed with the server, or at the end of this process."""
        return new_prefix(of_shared_server=store_name.startswith("redis"))

    @pytest.fixture
    async def store(self, store_name: str, prefix: str, clock: FrozenClock) -> AsyncIterator[Store]:
        store = _open(store_name, prefix, clock)
        yield store
        await store.close()

    @pytest.fixture
    def reopen(self, store_name: str, prefix: str, clock: FrozenClock) -> Reopen:
        return lambda: _open(store_name, prefix, clock)
