"""The server of a URL: the same for all stores of one server, and without credentials."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from postroom import ArgumentValueError
from postroom._connect import open_probe, server_of

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        (f"postgresql://jane:{SECRET}@db/one", "postgresql db:5432"),
        (f"postgres+psycopg://john:{SECRET}@DB:5432/two?pool_size=5", "postgresql db:5432"),
        ("postgresql+asyncpg://db:5433/one", "postgresql db:5433"),
        ("postgresql://127.0.0.1/one", "postgresql localhost:5432"),
        ("postgresql://[::1]:5433/one", "postgresql localhost:5433"),
        ("postgresql://[fe80::1]/one", "postgresql [fe80::1]:5432"),
        (f"postgresql://jane:{SECRET}@a:1,b/one", "postgresql a:1,b:5432"),
        (f"postgresql:///one?host=db&port=5433&user=jane&password={SECRET}", "postgresql db:5433"),
        ("postgresql:///one?host=/srv/sockets", "postgresql /srv/sockets:5432"),
        ("postgresql:///one?host=/run/postgresql", "postgresql localhost:5432"),
        (f"postgresql:///one?service=shops&password={SECRET}", "postgresql service=shops"),
        (f"redis://:{SECRET}@cache/3", "redis cache:6379"),
        (f"rediss://jane:{SECRET}@CACHE:6380", "redis cache:6380"),
        (f"redis://cache?username=jane&password={SECRET}", "redis cache:6379"),
        ("redis://[fe80::1]:6380/0", "redis [fe80::1]:6380"),
        (f"unix://:{SECRET}@/run/redis.sock", "redis /run/redis.sock"),
        (f"redis+sentinel://jane:{SECRET}@a:1,b/shop/0", "redis sentinel a:1,b:26379/shop"),
        (f"redis+cluster://jane:{SECRET}@a:1,b", "redis cluster a:1,b:6379"),
        ("sqlite:///one.db", "sqlite"),
        ("sqlite:////srv/two.db", "sqlite"),
        ("memory://", "memory"),
    ],
)
def test_the_server_of_a_url(url: str, server: str) -> None:
    assert server_of(url) == server
    assert SECRET not in server


@pytest.mark.parametrize("base", ["postgresql", "redis", "redis+cluster"])
@pytest.mark.parametrize("character", ["/", "#", "@", "?", "?x@"])
def test_a_password_that_makes_a_url_unreadable_is_not_repeated(base: str, character: str) -> None:
    with pytest.raises(ArgumentValueError) as raised:
        server_of(f"{base}://jane:12{character}{SECRET}@db/one")
    assert SECRET not in str(raised.value)
    assert "12" not in str(raised.value)


def test_postgres_uses_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db")
    monkeypatch.setenv("PGPORT", "5433")
    assert server_of("postgresql:///one") == "postgresql db:5433"
    monkeypatch.setenv("PGSERVICE", "shops")
    assert server_of("postgresql:///one") == "postgresql service=shops"


@pytest.fixture
def _plain_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of another package that has neither `server_of` nor `open_probe`."""
    (tmp_path / "plain_store.py").write_text("def open_store(scheme, rest, options): ...")
    info = tmp_path / "plain_store-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-store\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[postroom.stores]\nplain = plain_store\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plain_store", raising=False)


@pytest.mark.usefixtures("_plain_engine")
@pytest.mark.parametrize(
    ("url", "server"),
    [
        (f"plain://jane:{SECRET}@host:1/one?x=y", "plain host:1"),
        ("plain://host", "plain host"),
        ("plain:///path", "plain"),
        (f"plain://jane:12/{SECRET}@host/one", "plain"),
        (f"plain://jane:12?{SECRET}@host/one", "plain"),
    ],
)
def test_an_engine_without_the_function(url: str, server: str) -> None:
    assert server_of(url) == server
    assert open_probe(url) is None


def test_no_probe() -> None:
    assert open_probe("memory://") is None
    assert open_probe("postgresql://db/one", pool=object()) is None, "its URL may name another server"
