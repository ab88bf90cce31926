"""A running service on each store, and rooms of both modes that are its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from postroom import Postroom, sync
from postroom.service.settings import Settings
from tests.client.serving import STORES, TOKEN, serving, store_settings


@pytest.fixture(params=STORES)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    return Settings(**store_settings(request.param, tmp_path), tokens=f"shop={TOKEN}")  # type: ignore[arg-type]


@pytest.fixture
def service(settings: Settings) -> Iterator[str]:
    with serving(settings) as url:
        yield url


@pytest.fixture
async def room(service: str) -> AsyncIterator[Postroom]:
    room = Postroom(service, token=TOKEN)
    yield room
    await room.close()


@pytest.fixture
def sync_room(service: str) -> Iterator[sync.Postroom]:
    with sync.Postroom(service, token=TOKEN) as room:
        yield room
