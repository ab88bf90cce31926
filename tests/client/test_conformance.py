"""The guard's part of the public behaviour suite over the wire: the client is a store, in both modes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from postroom._connect import open_store
from postroom._kernel.program import Mode
from postroom._stores.for_room import wrap_for_room
from postroom.service.settings import Settings
from postroom.spi import Store
from postroom.testing import FrozenClock, as_async
from postroom.testing.conformance import GuardConformance
from tests.client.serving import STORES, TOKEN, serving, store_settings

CLIENTS: dict[str, tuple[Mode, bool]] = {"async": ("async", False), "sync": ("sync", False), "wrapped": ("async", True)}


class TestClient(GuardConformance):
    @pytest.fixture(params=STORES)
    def service_url(self, request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[str]:
        settings = Settings(**store_settings(request.param, tmp_path), tokens=f"shop={TOKEN}")  # type: ignore[arg-type]
        with serving(settings, clock) as url:
            yield url

    @pytest.fixture(params=CLIENTS)
    async def store(self, request: pytest.FixtureRequest, service_url: str, clock: FrozenClock) -> AsyncIterator[Store]:
        mode, is_wrapped = CLIENTS[request.param]
        store = open_store(service_url, mode=mode, clock=clock, token=TOKEN)
        if is_wrapped:
            store = wrap_for_room(store, mode)
        elif mode == "sync":
            store = as_async(store)
        yield cast("Store", store)
        await store.close()
