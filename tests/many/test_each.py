"""`room.router.each`: calls a function for each store, and survives the errors of some."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from postroom import Postroom, StoreResult
from postroom.errors import StoreNotFound


def room_of(folder: Path, *keys: str, **options: Any) -> Postroom:
    return Postroom(stores={key: f"sqlite:///{folder / key}.db" for key in keys}, deploy_schema=True, **options)


async def test_an_error_of_one_store_does_not_end_the_others(tmp_path: Path) -> None:
    room = room_of(tmp_path, "acme", "missing/globex", "initech")
    seen: list[str] = []

    async def count(store: Any) -> int:
        box = room.router.outbox(store.name)
        await box.enqueue("hello", {})
        return len(await box.find())

    results = await room.router.each(count, progress=lambda result: seen.append(result.store))
    assert [(result.store, result.value) for result in results] == [
        ("acme", 1),
        ("missing/globex", None),
        ("initech", 1),
    ]
    assert [type(result.error).__name__ for result in results] == ["NoneType", "OperationalError", "NoneType"]
    assert sorted(seen) == ["acme", "initech", "missing/globex"]
    assert room.router.open_stores == {}  # it leaves no connections
    await room.close()


@pytest.mark.parametrize(("parallel", "open_stores", "most"), [(2, 20, 2), (8, 3, 3)])
async def test_it_is_bounded_per_server(tmp_path: Path, parallel: int, open_stores: int, most: int) -> None:
    room = room_of(tmp_path, *map(str, range(8)), open_stores=open_stores)
    running = peak = 0

    async def work(_: Any) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(10):
            await asyncio.sleep(0)
        running -= 1

    results = await room.router.each(work, parallel=parallel)
    assert results == [StoreResult(str(number), None, None) for number in range(8)]
    assert peak == most
    await room.close()


async def test_only_the_named_stores_are_called(tmp_path: Path) -> None:
    room = room_of(tmp_path, "acme", "globex", "initech")

    async def name(store: Any) -> str:
        return str(store.name)

    results = await room.router.each(name, keys=["initech", "acme"])
    assert [result.value for result in results] == ["initech", "acme"]
    called: list[str] = []

    async def note(store: Any) -> None:
        called.append(store.name)

    with pytest.raises(StoreNotFound):
        await room.router.each(note, keys=["acme", "nope"])
    assert called == []
    await room.close()
