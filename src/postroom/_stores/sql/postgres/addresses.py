"""Which PostgreSQL databases a URL, a pool or an engine connects to: host, port and database, without credentials."""

from __future__ import annotations

import getpass
import inspect
import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from postroom._stores.sql.network import ClientPool
from postroom._stores.sql.transactions import class_names
from postroom.spi import Tx

_LOCAL = {"", "localhost", "127.0.0.1", "::1", "/run/postgresql", "/var/run/postgresql", "/tmp"}  # noqa: S108
"""Names of this machine. The folders are those in which servers usually have their sockets."""


class Addresses(NamedTuple):
    """The addresses of one database: several if several hosts are given, of which one is used."""

    known: frozenset[str]
    """In one form for all client libraries. Stores that have one in common are on the same database."""
    shown: str
    """As given, for logs."""


def of_parameters(given: Mapping[str, object]) -> Addresses | None:
    """Returns the addresses in the parameters of `connect`; None if a service file has them."""
    database = _database(given)
    if _service(given) or not database:
        return None
    pairs = _hosts_and_ports(given)
    known = {f"postgresql://{_canonical(host)}:{port or 5432}/{database}" for host, port in pairs}
    shown = ",".join(f"{_bracketed(host)}:{port}" if port else _bracketed(host) for host, port in pairs)
    return Addresses(frozenset(known), f"{shown}/{database}")


def of_url(url: str) -> Addresses | None:
    return of_parameters(_parameters_of(url))


def server_of(url: str) -> str:
    """Returns the hosts and ports of a URL, or the name of its service. Two names of one server may be returned."""
    given = _parameters_of(url)
    if service := _service(given):
        return f"service={service}"
    return ",".join(f"{_bracketed(_canonical(host))}:{port or 5432}" for host, port in _hosts_and_ports(given))


def database_of(url: str) -> str | None:
    """Returns the name of the database; None if a service file has it."""
    given = _parameters_of(url)
    if _service(given):
        return _named_database(given)
    return _database(given)


def of_pool(pool: ClientPool) -> Addresses | None:
    """Returns the addresses of a user's pool; None if a function of the user makes its connections."""
    names = class_names(pool)
    try:
        if "sqlalchemy.Engine" in names or "sqlalchemy.AsyncEngine" in names:
            return _of_engine(pool)
        if "asyncpg.Pool" in names:
            return _of_asyncpg(pool)
        return _of_psycopg(pool)
    except (AttributeError, TypeError, ValueError):
        return None  # another version of the client library has them elsewhere


def of_tx(tx: Tx) -> frozenset[str]:
    """Returns the addresses of the database of a caller's transaction; empty if they are not known, or for a socket."""
    try:
        given = _parameters_of_tx(tx)
    except Exception:  # noqa: BLE001 - the connection is closed, or another version has them elsewhere
        return frozenset()
    if given is None or any(not host or host.startswith("/") for host, _ in _hosts_and_ports(given)):
        return frozenset()
    found = of_parameters(given)
    return found.known if found else frozenset()


def _parameters_of_tx(tx: Tx) -> Mapping[str, object] | None:
    names = class_names(tx)
    if "psycopg.AsyncConnection" in names or "psycopg.Connection" in names:
        return {"host": tx.info.host, "port": tx.info.port, "database": tx.info.dbname}
    if "asyncpg.Connection" in names or "asyncpg.PoolConnectionProxy" in names:
        address = tx._addr  # noqa: SLF001 - it has no public name for it
        host, port = address if isinstance(address, tuple) else ("", "")
        return {"host": host, "port": port, "database": tx._params.database}  # noqa: SLF001
    if hasattr(tx, "in_atomic_block"):  # Django's
        return _parameters_of_tx(tx.connection)
    if hasattr(tx, "get_bind"):  # a SQLAlchemy session
        return _parameters_of_tx(tx.get_bind())
    return _parameters_of_engine(getattr(tx, "engine", None))  # of a SQLAlchemy connection; of an engine: itself


def _of_engine(engine: ClientPool) -> Addresses | None:
    given = _parameters_of_engine(engine)
    return None if given is None else of_parameters(given)


def _parameters_of_engine(engine: ClientPool) -> Mapping[str, object] | None:
    connect = engine.pool._creator  # noqa: SLF001 - nothing else has the parameters together with `connect_args`
    if connect.__module__ != "sqlalchemy.engine.create":
        return None
    parameters: Mapping[str, object] = inspect.getclosurevars(connect).nonlocals["cparams"]
    return parameters


def _of_asyncpg(pool: ClientPool) -> Addresses | None:
    connect = getattr(pool, "_connect", None)
    if connect is not None and connect.__module__.partition(".")[0] != "asyncpg":
        return None
    dsn = (*pool._connect_args, pool._connect_kwargs.get("dsn"))[0]  # noqa: SLF001 - it has no public names for them
    given = {name: value for name, value in pool._connect_kwargs.items() if value is not None}  # noqa: SLF001
    return of_parameters({**_parameters_of(dsn or ""), **given})


def _of_psycopg(pool: ClientPool) -> Addresses | None:
    import psycopg.conninfo

    try:
        return of_parameters(psycopg.conninfo.conninfo_to_dict(pool.conninfo, **(pool.kwargs or {})))
    except psycopg.Error:
        return None


def _parameters_of(url: str) -> dict[str, object]:
    """Reads a URL as libpq and asyncpg do. Parameters after `?` apply where the rest of the URL has none."""
    path, _, query = url.partition("://")[2].partition("?")
    before, _, database = path.partition("/")
    credentials, _, hosts = before.rpartition("@")
    pairs = [_split(host) for host in hosts.split(",")] if hosts else []
    given = {
        "user": unquote(credentials.partition(":")[0]),
        "host": [unquote(host) for host, _ in pairs],
        "port": [port for _, port in pairs] if any(port for _, port in pairs) else "",
        "database": unquote(database),
    }
    return {**dict(parse_qsl(query)), **{name: value for name, value in given.items() if value}}


def _split(host: str) -> tuple[str, str]:
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name, port.lstrip(":")
    name, _, port = host.partition(":")
    return name, port


def _service(given: Mapping[str, object]) -> object:
    return given.get("service") or os.environ.get("PGSERVICE")


def _database(given: Mapping[str, object]) -> str | None:
    return _named_database(given) or os.environ.get("PGDATABASE") or _user(given)


def _named_database(given: Mapping[str, object]) -> str | None:
    named = given.get("database") or given.get("dbname")
    return str(named) if named else None


def _hosts_and_ports(given: Mapping[str, object]) -> list[tuple[str, str]]:
    hosts = _several(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", ""))
    ports = _several(given.get("port") or os.environ.get("PGPORT", ""))
    if len(ports) == 1:
        ports = ports * len(hosts)
    return list(zip_longest(hosts, ports[: len(hosts)], fillvalue=""))


def _several(value: object) -> list[str]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ["" if each is None else str(each) for each in value]
    return str(value).split(",")


def _user(given: Mapping[str, object]) -> str | None:
    """Returns the name of the user, which is also the default name of the database."""
    named = given.get("user") or os.environ.get("PGUSER")
    if named:
        return str(named)
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # the user of the process has no name
        return None


def _canonical(host: str) -> str:
    return "localhost" if host.rstrip("/") in _LOCAL else host.lower()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
