"""Which databases a URL, a pool or an engine of PostgreSQL connects to."""

from __future__ import annotations

import asyncpg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from postroom._stores.sql.postgres.addresses import Addresses, of_parameters, of_pool, of_url


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


def found(addresses: Addresses | None) -> tuple[set[str], str]:
    assert addresses is not None
    return {address.removeprefix("postgresql://") for address in addresses.known}, addresses.shown


@pytest.mark.parametrize(
    ("url", "known", "shown"),
    [
        ("postgresql://jane:secret@db:5433/shop", {"db:5433/shop"}, "db:5433/shop"),
        ("postgresql://DB/shop", {"db:5432/shop"}, "DB/shop"),
        ("postgresql://127.0.0.1/shop", {"localhost:5432/shop"}, "127.0.0.1/shop"),
        ("postgresql://[::1]:5433/shop", {"localhost:5433/shop"}, "[::1]:5433/shop"),
        ("postgresql:///shop", {"localhost:5432/shop"}, "/shop"),
        ("postgresql:///shop?host=/run/postgresql&port=5433", {"localhost:5433/shop"}, "/run/postgresql:5433/shop"),
        ("postgresql:///shop?host=/srv/sockets", {"/srv/sockets:5432/shop"}, "/srv/sockets/shop"),
        ("postgresql://a:1,b/shop", {"a:1/shop", "b:5432/shop"}, "a:1,b/shop"),
        ("postgresql://jane:secret@db", {"db:5432/jane"}, "db/jane"),
        ("postgresql://db/my%20shop", {"db:5432/my shop"}, "db/my shop"),
    ],
)
def test_of_a_url(url: str, known: set[str], shown: str) -> None:
    assert found(of_url(url)) == (known, shown)


def test_the_environment_says_what_a_url_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGHOST": "db", "PGPORT": "5433", "PGDATABASE": "shop"}.items():
        monkeypatch.setenv(name, value)
    assert found(of_url("postgresql://")) == ({"db:5433/shop"}, "db:5433/shop")
    assert found(of_url("postgresql://a:1/b")) == ({"a:1/b"}, "a:1/b")
    monkeypatch.setenv("PGSERVICE", "elsewhere")
    assert of_url("postgresql://") is None
    assert of_parameters({"service": "elsewhere", "host": "db", "dbname": "shop"}) is None


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_of_an_engine(driver: str) -> None:
    url = f"postgresql+{driver}://jane:secret@db:5433/shop"
    assert found(of_pool(create_async_engine(url)))[0] == {"db:5433/shop"}
    assert found(of_pool(create_async_engine(url, connect_args={"host": "other"})))[0] == {"other:5433/shop"}
    several = f"postgresql+{driver}:///shop?host=a:1&host=b:2"
    assert found(of_pool(create_async_engine(several)))[0] == {"a:1/shop", "b:2/shop"}


def test_of_an_engine_for_sync_code() -> None:
    engine = sa.create_engine("postgresql+psycopg://jane:secret@db/shop", poolclass=sa.NullPool)
    assert found(of_pool(engine))[0] == {"db:5432/shop"}


def test_of_a_pool_of_psycopg() -> None:
    pool = psycopg_pool.ConnectionPool("host=db dbname=shop password=secret", kwargs={"port": 5433}, open=False)
    assert found(of_pool(pool)) == ({"db:5433/shop"}, "db:5433/shop")


async def test_of_a_pool_of_asyncpg() -> None:
    pool = asyncpg.create_pool("postgresql://jane:secret@db/shop", port=5433, min_size=0)
    assert found(of_pool(pool)) == ({"db:5433/shop"}, "db:5433/shop")


async def test_is_not_known_where_a_function_of_the_user_connects() -> None:
    async def connect(*_given: object, **_options: object) -> None: ...

    assert of_pool(create_async_engine("postgresql+asyncpg://db/shop", async_creator=connect)) is None
    assert of_pool(sa.create_engine("postgresql+psycopg://db/shop", creator=lambda: None)) is None
    assert of_pool(asyncpg.create_pool("postgresql://db/shop", min_size=0, connect=connect)) is None
