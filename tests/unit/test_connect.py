"""From a URL to a store: the table of schemes, and the entry points that extend it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Postroom
from postroom._connect import is_database_error, make_engine, open_store, transaction_classes
from postroom.sync import Postroom as SyncPostroom

MODULE = """
from postroom._stores.memory import MemoryStore, SyncMemoryStore

ERROR_PACKAGES = {"shelves"}
TX_CLASSES = ("shelves.Shelf",)


class ShelfError(Exception):
    __module__ = "shelves.errors"


def open_store(scheme, rest, options):
    store = MemoryStore() if options.mode == "async" else SyncMemoryStore()
    store.name = f"{scheme}:{rest}:{options.prefix}"
    return store
"""


@pytest.fixture
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with an entry point, as pip leaves it behind."""
    (tmp_path / "shelf_store.py").write_text(MODULE)
    info = tmp_path / "shelf_store-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-store\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[postroom.stores]\nshelf = shelf_store\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shelf_store", raising=False)


@pytest.mark.usefixtures("shelves")
async def test_another_package_adds_a_store() -> None:
    async with Postroom("shelf+wood://top/left", prefix="mail_") as room:
        await room.outbox().enqueue("t", "x")
        [message] = await room.outbox().find()
        assert message.payload == "x"
    with SyncPostroom("shelf://top") as sync_room:
        sync_room.outbox().enqueue("t", "y")
        assert [message.payload for message in sync_room.outbox().find()] == ["y"]


@pytest.mark.usefixtures("shelves")
def test_its_name_is_among_those_that_are_known() -> None:
    with pytest.raises(
        ArgumentValueError, match=r"there is no store for shelves://; .* memory://, http://, https://, shelf://$"
    ):
        Postroom("shelves://top")


@pytest.mark.usefixtures("shelves")
def test_its_errors_are_known_once_it_is_in_use() -> None:
    Postroom("shelf://top")
    import shelf_store  # type: ignore[import-not-found]

    assert is_database_error(shelf_store.ShelfError())
    assert not is_database_error(LookupError())


@pytest.mark.usefixtures("shelves")
def test_its_transactions_are_known_to_rooms_with_many_stores() -> None:
    shelf = type("Shelf", (), {"__module__": "shelves.shelf"})

    async def handle(message: object, tx: object) -> None: ...

    handle.__annotations__["tx"] = shelf
    room = Postroom(stores={"acme": "shelf://top"})
    room.inbox().handler("t", transactional=True)(handle)
    handle.__annotations__["tx"] = type("Shelf", (), {"__module__": "cupboards"})
    with pytest.raises(ArgumentTypeError, match=r"cupboards\.Shelf, and this room passes a .* or shelves\.Shelf"):
        room.outbox().handler("t", transactional=True)(handle)


@pytest.mark.parametrize(
    "url", ["sqlite:///shop.db", "postgresql+asyncpg://host/shop", "postgresql+psycopg://host/shop", "memory://"]
)
def test_each_engine_lists_the_transactions_of_its_stores(url: str) -> None:
    store = open_store(url, mode="async")
    assert set(getattr(store, "tx_classes", ())) <= set(transaction_classes())


def test_listing_transactions_imports_no_client_library() -> None:
    program = """
import sys
from postroom._connect import transaction_classes
packages = {name.partition(".")[0] for name in transaction_classes()}
print(len(packages), sorted(packages & sys.modules.keys()))
"""
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    count, _, imported = printed.strip().partition(" ")
    assert int(count) >= 4
    assert imported == "[]"


@pytest.mark.parametrize("dialect", ["oracle", "redis", "memory", "postgres"])
def test_only_sql_engines_have_tables(dialect: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"no tables for '{dialect}'; this version has postgresql and sqlite"):
        make_engine(dialect, "postroom_", None)


@pytest.mark.usefixtures("shelves")
def test_a_package_that_cannot_be_loaded_breaks_only_its_own_scheme(tmp_path: Path) -> None:
    (tmp_path / "shelf_store.py").write_text("import missing_module_of_the_shelf")
    assert make_engine("sqlite", "postroom_", None).name == "sqlite"
    assert "aiosqlite.Connection" in transaction_classes()
    with pytest.raises(ArgumentValueError, match=r"the store for shelf:// cannot be loaded: .* shelf_store, .* Module"):
        Postroom("shelf://top")


@pytest.mark.parametrize("url", ["sqlite+other:///shop.db", "memory+other://"])
def test_a_scheme_without_drivers_takes_no_suffix(url: str) -> None:
    with pytest.raises(ArgumentValueError, match="there is no store for"):
        Postroom(url)
