"""Two stores with the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom import ArgumentValueError, Postroom, StoreConfig
from postroom.sync import Postroom as SyncPostroom

POSTGRES = "postgresql://a:b@db.example/shop"
SAME: dict[str, tuple[Any, Any]] = {
    "the same URL": (POSTGRES, POSTGRES),
    "another form of the URL": (POSTGRES, "postgresql+psycopg://a:other@DB.example:5432/shop?application_name=x"),
    "the same schema, another user": (
        StoreConfig(POSTGRES, schema="x"),
        StoreConfig("postgresql://c@db.example/shop", schema="x"),
    ),
    "the same file": ("sqlite:///shop.db", "sqlite:///./shop.db"),
    "the same keys": ("redis://cache.example/1", "redis://:secret@cache.example/1"),
}
DISTINCT: dict[str, tuple[Any, Any]] = {
    "another database": (POSTGRES, "postgresql://a@db.example/other"),
    "another server": (POSTGRES, "postgresql://a@db2.example/shop"),
    "another schema": (StoreConfig(POSTGRES, schema="x"), StoreConfig(POSTGRES, schema="y")),
    "another prefix": (POSTGRES, StoreConfig(POSTGRES, prefix="x_")),
    "another search path": (POSTGRES, f"{POSTGRES}?options=-csearch_path%3Dx"),
    "the search path of another user": (POSTGRES, "postgresql://c@db.example/shop"),
    "memory": ("memory://", "memory://"),
    "another file": ("sqlite:///shop.db", "sqlite:///other.db"),
    "another Redis database": ("redis://cache.example/1", "redis://cache.example/2"),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_a_fixed_list_is_refused(pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentValueError, match="store 'globex': it has the same tables as store 'acme'"):
        Postroom(stores=dict(zip(("acme", "globex"), pair, strict=True)))


@pytest.mark.parametrize("pair", DISTINCT.values(), ids=DISTINCT)
def test_distinct_stores(pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(Postroom(stores=dict(zip(("acme", "globex"), pair, strict=True))).router) == 2


def test_a_discovered_store_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = {"acme": f"sqlite:///{tmp_path}/a.db", "globex": f"sqlite:///{tmp_path}/a.db"}
    with SyncPostroom(discover=lambda: dict(stores)) as room:
        room.refresh()
        assert room.router.keys == ["acme"]
        assert "store=globex is left out: " in caplog.text
        assert "it has the same tables as store 'acme'" in caplog.text
        stores["globex"] = f"sqlite:///{tmp_path}/b.db"
        room.refresh()
        assert room.router.keys == ["acme", "globex"]


def test_a_store_of_the_room_keeps_its_tables(tmp_path: Path) -> None:
    stores = {"globex": f"sqlite:///{tmp_path}/a.db"}
    with SyncPostroom(discover=lambda: dict(stores)) as room:
        room.refresh()
        stores = {"acme": stores["globex"], **stores}
        room.refresh()
        assert room.router.keys == ["globex"], "although the other one is the first of the list"
