"""From a PostgreSQL URL to a store: the client library, the pool, and its settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from postroom._kernel.program import Mode
from postroom._kernel.scope import UNNAMED
from postroom._stores.hub import ChannelHub
from postroom._stores.options import StoreOptions
from postroom._stores.sql.network import Adapter, AsyncPool, ClientPool, Pool
from postroom._stores.sql.postgres import addresses
from postroom._stores.sql.postgres.asyncpg import AsyncpgPool
from postroom._stores.sql.postgres.driver import PostgresDriver, SyncPostgresDriver
from postroom._stores.sql.postgres.engine import PostgresEngine, check_schema, shared_engine
from postroom._stores.sql.postgres.hub import HUB_CONNECTIONS, PostgresChannel
from postroom._stores.sql.postgres.probe import PostgresProbe, ProbePool
from postroom._stores.sql.postgres.psycopg import PsycopgPool, SyncPsycopgPool
from postroom._stores.sql.postgres.settings import (
    POOL_SIZE,
    RESERVED_FOR_VERBS,
    RESTORE_PLANNER,
    SERVER_SETTINGS,
    PoolSettings,
)
from postroom._stores.sql.postgres.sqlalchemy_pool import SqlalchemyPool, SyncSqlalchemyPool
from postroom._stores.sql.store import SqlStore, SyncSqlStore
from postroom._stores.sql.transactions import class_names
from postroom.errors import ArgumentTypeError, ArgumentValueError

PoolClass: TypeAlias = type[AsyncpgPool] | type[PsycopgPool] | type[SyncPsycopgPool]

CLIENTS: dict[Mode, dict[str, PoolClass]] = {
    "async": {"asyncpg": AsyncpgPool, "psycopg": PsycopgPool},
    "sync": {"psycopg": SyncPsycopgPool},
}
"""The client libraries, by their names in URLs and in SQLAlchemy's dialects. The first that is installed is used."""
ERROR_PACKAGES = frozenset(
    name.partition(".")[0]
    for clients in CLIENTS.values()
    for client in clients.values()
    for name in (client.pool_class, *client.adapter.connection_classes)
)
"""Packages whose errors say what is wrong with the database or the connection to it."""
TX_CLASSES = tuple(
    name for pool in (*CLIENTS["async"].values(), SqlalchemyPool) for name in getattr(pool, "tx_classes", ())
)
"""The class names of the transactions that handlers get."""

DIALECT = PostgresEngine.name


def make_engine(prefix: str, schema: str | None) -> PostgresEngine:
    """Returns the engine for `postroom.sqlalchemy`."""
    return PostgresEngine(prefix, schema=schema)


def open_store(scheme: str, rest: str, options: StoreOptions) -> SqlStore | SyncSqlStore:
    options.refuse(f"{scheme}://", "token")
    client = _client(scheme.partition("+")[2], options.mode)
    shown, settings = _settings(rest, options.pool_size)
    pool = _pool(client, settings, options)
    shown, known = _addresses(shown, settings.url, options.pool)
    engine = shared_engine(
        options.prefix,
        check_schema(options.schema),
        own_clock=options.clock is not None,
        notifies=options.notify and not settings.pgbouncer,
    )
    driver = (PostgresDriver if options.mode == "async" else SyncPostgresDriver)(
        pool,
        engine,
        name=f"postgresql:{shown}",
        addresses=known,
        adapters=[each.adapter for clients in CLIENTS.values() for each in clients.values()],
        clock=options.clock,
        always_begin=settings.pgbouncer,
        max_handlers=_max_handlers(options.pool, settings),
        # A pool may be of another database than the URL, and PgBouncer may have another name for it.
        database=None if options.pool is not None or settings.pgbouncer else _database(settings.url),
    )
    if isinstance(driver, PostgresDriver):
        return SqlStore(driver, deploy_schema=options.deploy_schema, verified=options.verified)
    return SyncSqlStore(driver, deploy_schema=options.deploy_schema, verified=options.verified)


def server_of(_scheme: str, rest: str) -> str:
    """Returns the server of a URL without credentials: its hosts and ports."""
    return f"{DIALECT} {addresses.server_of(_settings(rest)[1].url)}"


def addresses_of_tx(tx: object) -> frozenset[str]:
    """Returns the addresses of the database of a caller's transaction, if they are known without I/O."""
    return addresses.of_tx(tx)


def open_probe(_options: StoreOptions) -> PostgresProbe:
    """Returns a probe for the stores of one server."""
    return PostgresProbe(_probe_pool)


def open_hub(scheme: str, rest: str, options: StoreOptions) -> ChannelHub:
    """Returns a hub on this database."""
    pool, pgbouncer = _pool_of_size(HUB_CONNECTIONS, scheme, rest)
    if pgbouncer:
        raise ArgumentValueError("a hub needs LISTEN, which PgBouncer does not pass on: connect to the server itself")
    return ChannelHub(PostgresChannel(pool, f"{options.prefix}hub"))


def _probe_pool(url: str) -> ProbePool:
    scheme, _, rest = url.partition("://")
    return ProbePool(*_pool_of_size(1, scheme, rest))


def _pool_of_size(size: int, scheme: str, rest: str) -> tuple[AsyncPool, bool]:
    """Returns a pool, and whether it is behind PgBouncer."""
    _, settings = _settings(rest)
    client = _client(scheme.partition("+")[2], "async")
    return cast("AsyncPool", client(replace(settings, size=size))), settings.pgbouncer


def _addresses(shown: str, url: str, pool: ClientPool) -> tuple[str, frozenset[str]]:
    """Returns the database's name for logs, and its addresses. A given pool may be of another one than the URL."""
    if pool is None:
        found = addresses.of_url(url)
        return shown, found.known if found else frozenset()
    found = addresses.of_pool(pool) or (addresses.of_url(url) if shown != "/" else None)
    return (found.shown, found.known) if found else (UNNAMED, frozenset())


def _max_handlers(pool: ClientPool, settings: PoolSettings) -> int | None:
    """Returns how many handlers may have a transaction at once, so that verbs find a connection too."""
    size = settings.size if pool is None else _size_of(pool)
    return None if size is None else size - RESERVED_FOR_VERBS


def _client(asked: str, mode: Mode) -> PoolClass:
    """Returns the class of pools of the client library that the URL names, or of one that is installed."""
    clients = CLIENTS[mode]
    if asked and asked not in clients:
        known = " or ".join(f"postgresql+{name}://" for name in clients)
        raise ArgumentValueError(f"{mode} code has no driver {asked!r} for PostgreSQL: use {known}")
    installed = [name for name in clients if importlib.util.find_spec(name)]
    return clients[asked or next(iter(installed), next(iter(clients)))]


def _settings(rest: str, pool_size: int | None = None) -> tuple[str, PoolSettings]:
    """Returns the host and database without credentials, and the settings, from what follows `://`."""
    path, _, query = rest.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    if any("@" in name for name in parameters):  # the ? is in the password
        raise _unreadable()
    pgbouncer = _flag("pgbouncer", parameters.pop("pgbouncer", "false"))
    size = _size(parameters.pop("pool_size", str(pool_size or POOL_SIZE)))
    settings: dict[str, str] = {} if pgbouncer else SERVER_SETTINGS
    hosts = _hosts(path)
    shown = f"{hosts or parameters.get('host', '')}/{path.partition('/')[2]}"
    url = f"postgresql://{path}" + (f"?{urlencode(parameters)}" if parameters else "")
    return shown, PoolSettings(
        url,
        size=size,
        pgbouncer=pgbouncer,
        primary_only="," in hosts and "target_session_attrs" not in parameters,
        # The URL's settings come first.
        server_settings={name: value for name, value in settings.items() if name not in parameters},
        handler_settings="" if pgbouncer else RESTORE_PLANNER,
    )


def _database(url: str) -> str | None:
    """Returns the name of the database, if the URL has one."""
    return unquote(urlsplit(url).path.lstrip("/")) or None


def _hosts(path: str) -> str:
    """Returns the hosts and ports. They are checked here: a client library's error might quote part of a password."""
    before, _, database = path.partition("/")
    hosts = before.rpartition("@")[2]
    ports = [host.rpartition(":")[2] for host in hosts.split(",") if ":" in host and not host.endswith("]")]
    if (
        "@" in database
        or "#" in path
        or before.count("@") > 1
        or not all(port.isdecimal() or not port for port in ports)
    ):
        raise _unreadable()
    return hosts


def _unreadable() -> ArgumentValueError:
    return ArgumentValueError(
        "this URL cannot be read: it should look like postgresql://user:password@host:5432/database. A password "
        "with / # @ ? or : in it must be percent-encoded (urllib.parse.quote), or come from PGPASSWORD"
    )


def _flag(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false", "1", "0"}:
        raise ArgumentValueError(f"{name} in a URL is true or false")
    return value.lower() in {"true", "1"}


def _size(value: str) -> int:
    if not value.isdecimal() or not RESERVED_FOR_VERBS < int(value) <= 1000:
        raise ArgumentValueError(f"pool_size in a URL is a number from {RESERVED_FOR_VERBS + 1} to 1000")
    return int(value)


def _pool(client: PoolClass, settings: PoolSettings, options: StoreOptions) -> Pool:
    given: ClientPool = options.pool
    if given is None:
        return client(settings)
    mode = options.mode
    kinds: dict[str, Callable[[], Pool]] = {
        each.pool_class: partial(each, settings, given) for each in CLIENTS[mode].values()
    }
    if mode == "async":
        kinds["sqlalchemy.AsyncEngine"] = lambda: SqlalchemyPool(given, _adapter(given, mode))
    else:
        kinds["sqlalchemy.Engine"] = lambda: SyncSqlalchemyPool(given, _adapter(given, mode))
    names = class_names(given)  # with bases: the user's class may inherit from one of these
    make = next((kinds[name] for name in names if name in kinds), None)
    if make is None:
        raise ArgumentTypeError(f"pool is a {names[0]}; {mode} code takes one of: {', '.join(kinds)}")
    most = _size_of(given)
    if mode == "async" and most is not None and most <= RESERVED_FOR_VERBS:
        raise ArgumentValueError(
            f"this pool has at most {most} connections: a room needs {RESERVED_FOR_VERBS + 1} or more, since one "
            "listens, one settles, and a transactional handler has one for itself"
        )
    return make()


def _size_of(pool: ClientPool) -> int | None:
    """Returns how many connections a user's pool may have; None if it has no limit, or none that is known."""
    if hasattr(pool, "get_max_size"):
        return int(pool.get_max_size())
    size = getattr(pool, "max_size", None)
    below: ClientPool = getattr(pool, "pool", None)
    if size is None and hasattr(below, "size") and getattr(below, "_max_overflow", -1) >= 0:
        size = below.size() + below._max_overflow  # noqa: SLF001 - SQLAlchemy has no public name for it
    return int(size) if size else None


def _adapter(engine: ClientPool, mode: Mode) -> Adapter:
    if engine.dialect.name != PostgresEngine.name:
        raise ArgumentValueError(f"this SQLAlchemy engine is on {engine.dialect.name}, not on PostgreSQL")
    client = CLIENTS[mode].get(engine.dialect.driver)
    if client is None:
        known = " or ".join(f"postgresql+{name}://" for name in CLIENTS[mode])
        raise ArgumentValueError(f"this SQLAlchemy engine uses {engine.dialect.driver}: make it with {known}")
    return client.adapter
