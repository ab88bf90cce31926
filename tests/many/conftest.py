"""Rooms over many stores, on files and on databases of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import Postroom
from postroom.testing import Events
from tests.many.directory import Directory
from tests.many.stores import ENGINES, Handled, Looks, databases

OpenRoom = Callable[..., Postroom]


@pytest.fixture(autouse=True)
def _all_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="postroom")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def urls(engine: str, tmp_path: Path) -> dict[str, str]:
    """Three stores with tables."""
    return databases(engine, tmp_path)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def handled() -> Handled:
    return Handled()


@pytest.fixture
async def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.fixture
async def open_room(events: Events) -> AsyncIterator[OpenRoom]:
    """Makes rooms, which are closed at the end."""
    opened: list[Postroom] = []

    def open_(stores: Any = None, **options: Any) -> Postroom:
        options.setdefault("shutdown_timeout", timedelta(seconds=2))  # a test that fails must not take long
        options.setdefault("observers", [events])
        room = Postroom(stores=stores, **options)
        opened.append(room)
        return room

    yield open_
    for room in opened:
        await room.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the times of the schedule and of the breaker short."""
    for name, seconds in {
        "store_schedule.HELP_SECONDS": 0.2,
        "store_schedule.SPARED_SECONDS": 0.05,
        "store_schedule.ECHO_SECONDS": 0.02,
        "store_schedule.FIRST_PAUSE": 0.02,
        "breaker.SHORTEST_SECONDS": 0.05,
        "breaker.LONGEST_SECONDS": 0.2,
        "discovery.CONFIRM_SECONDS": 0.05,
    }.items():
        monkeypatch.setattr(f"postroom._many.{name}", seconds)


@pytest.fixture
async def directory(urls: dict[str, str]) -> Directory:
    return Directory(urls)
